package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/internal/atomicfile"
	"github.com/turbotrellis/turbotrellis/kvcache/block"
)

func newKVStore() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Look after a directory of KV blocks",
		Long: `Look after a directory of KV blocks, as package kvcache/block writes them.

A block is a frame of docs/format.md. Several processes may use one directory
at once, these commands included.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newStorePut(), newStoreGet(), newStoreList(), newStoreGC())
	return cmd
}

// storedBlock is what the store commands print of a block.
type storedBlock struct {
	Key    string    `json:"key"`
	First  uint64    `json:"first_token"`
	Tokens int       `json:"tokens"`
	Layers int       `json:"layers"`
	Bytes  int64     `json:"bytes"`
	Used   time.Time `json:"used,omitzero"`
	Error  string    `json:"error,omitempty"` // why the block is refused
}

func describeBlock(frame []byte) (storedBlock, error) {
	id, layers, err := block.Inspect(frame)
	if err != nil {
		return storedBlock{}, err
	}
	return storedBlock{Key: id.Key.String(), First: id.First, Tokens: id.Tokens, Layers: len(layers), Bytes: int64(len(frame))}, nil
}

func (b storedBlock) text(w io.Writer) error {
	if b.Error != "" {
		_, err := fmt.Fprintf(w, "%s  %10s  %s\n", b.Key, bytesText(b.Bytes), b.Error)
		return err
	}
	_, err := fmt.Fprintf(w, "%s  %10s  tokens %d to %d, %d layers\n", b.Key, bytesText(b.Bytes), b.First, b.First+uint64(max(b.Tokens, 1))-1, b.Layers)
	return err
}

func newStorePut() *cobra.Command {
	var maxBytes int64
	cmd := &cobra.Command{
		Use:   "put STORE FRAME...",
		Short: "Check frames and add them to a store",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usagef("%s takes a store and at least one frame", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := block.OpenStore(args[0], block.StoreOptions{MaxBytes: maxBytes})
			if err != nil {
				return err
			}
			defer s.Close()
			for _, path := range args[1:] {
				frame, err := readRegular(path)
				if err != nil {
					return err
				}
				b, err := describeBlock(frame)
				if err == nil {
					err = s.Put(cmd.Context(), frame)
				}
				if err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
				if err := b.text(cmd.OutOrStdout()); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().Int64Var(&maxBytes, "max-bytes", 0, "remove the longest unused blocks beyond this size")
	return cmd
}

func newStoreGet() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "get STORE KEY OUT",
		Short: "Copy a block from a store to a file",
		Long:  "Copy a block from a store to a file, after checking it. OUT may be - for standard output.",
		Args:  exactly(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := block.ParseHash(args[1])
			if err != nil {
				return usageError{err}
			}
			s, err := openStore(args[0], block.StoreOptions{})
			if err != nil {
				return err
			}
			defer s.Close()
			frame, err := s.Get(nil, key)
			if err != nil {
				return err
			}
			if args[2] == "-" {
				_, err := cmd.OutOrStdout().Write(frame)
				return err
			}
			f, err := atomicfile.Create(args[2], atomicfile.Options{Force: force})
			if err != nil {
				return advised(err)
			}
			defer f.Close()
			if _, err := f.Write(frame); err != nil {
				return err
			}
			return advised(f.Commit())
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace an existing OUT")
	return cmd
}

// openStore opens a store that is there.
func openStore(dir string, o block.StoreOptions) (*block.Store, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a directory", dir)
	}
	return block.OpenStore(dir, o)
}

func newStoreList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls STORE",
		Short: "List the blocks of a store, the longest unused first, and check each",
		Args:  exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := openStore(args[0], block.StoreOptions{})
			if err != nil {
				return err
			}
			defer s.Close()
			entries, err := s.List(cmd.Context())
			if err != nil {
				return err
			}
			blocks, bad := []storedBlock{}, 0
			var frame []byte
			for _, e := range entries {
				if err := cmd.Context().Err(); err != nil {
					return err
				}
				var b storedBlock
				if frame, err = s.Peek(frame[:0], e.Key); err == nil {
					b, err = describeBlock(frame)
				}
				if err != nil {
					bad++
					b.Error = err.Error()
				}
				b.Key, b.Bytes, b.Used = e.Key.String(), e.Size, e.Used
				blocks = append(blocks, b)
			}
			if err := emit(cmd.OutOrStdout(), asJSON, blocks, func(w io.Writer) error {
				for _, b := range blocks {
					if err := b.text(w); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				return err
			}
			if bad > 0 {
				return fmt.Errorf("%d of %d blocks are refused", bad, len(blocks))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newStoreGC() *cobra.Command {
	var maxBytes int64
	cmd := &cobra.Command{
		Use:   "gc STORE --max-bytes N",
		Short: "Remove the longest unused blocks of a store",
		Long: `Remove the longest unused blocks of a store until the rest takes at most
--max-bytes, and what killed processes have left. Of blocks that were last used in
the same minute the ones furthest into their sequences go first.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if maxBytes <= 0 {
				return usagef("--max-bytes is required, at least 1")
			}
			s, err := openStore(args[0], block.StoreOptions{MaxBytes: maxBytes})
			if err != nil {
				return err
			}
			defer s.Close()
			removed, err := s.GC(cmd.Context())
			if err != nil {
				return err
			}
			var n int64
			for _, e := range removed {
				n += e.Size
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed %d blocks, %s\n", len(removed), bytesText(n))
			return err
		},
	}
	cmd.Flags().Int64Var(&maxBytes, "max-bytes", 0, "size of what is kept")
	return cmd
}
