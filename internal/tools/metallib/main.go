// Command metallib compiles the shaders ahead of time, on a Mac with Xcode: one library for each
// kernel, into the folder that is its argument. A program that finds the folder in
// TURBOTRELLIS_METALLIB loads from there what was compiled from the sources that it has itself.
//
// With -source it writes the sources only, which needs no Mac.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("metallib: ")
	sourceOnly := flag.Bool("source", false, "write the sources only")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: metallib [-source] FOLDER")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := os.MkdirAll(flag.Arg(0), 0o755); err != nil {
		log.Fatal(err)
	}
	kernels := make(chan shaders.Variant)
	var group sync.WaitGroup
	var failed atomic.Bool
	for range runtime.NumCPU() {
		group.Go(func() {
			for v := range kernels {
				if err := build(flag.Arg(0), v, *sourceOnly); err != nil {
					failed.Store(true)
					log.Printf("%s: %v", v.Name, err)
				}
			}
		})
	}
	for _, v := range shaders.Variants() {
		if failed.Load() {
			break
		}
		kernels <- v
	}
	close(kernels)
	group.Wait()
	if failed.Load() {
		os.Exit(1)
	}
}

// build compiles one kernel as device.NewLibrary would, with the kernel that proves the source.
func build(dir string, v shaders.Variant, sourceOnly bool) error {
	source := shaders.Source(v)
	name := gpu.PrebuiltName(source)
	path := filepath.Join(dir, name)
	source += "\n[[kernel]] void " + name + "() {}\n"
	if err := os.WriteFile(path+".metal", []byte(source), 0o644); err != nil || sourceOnly {
		return err
	}
	for _, args := range [][]string{
		{"metal", "-std=metal3.0", "-mmacosx-version-min=13.0", "-fno-fast-math", "-ffp-contract=off", "-c", path + ".metal", "-o", path + ".air"},
		{"metallib", path + ".air", "-o", path + ".metallib"},
	} {
		c := exec.Command("xcrun", append([]string{"-sdk", "macosx"}, args...)...)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Run(); err != nil {
			return fmt.Errorf("%v: %w", c.Args, err)
		}
	}
	return os.Remove(path + ".air")
}
