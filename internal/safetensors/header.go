package safetensors

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/turbotrellis/turbotrellis/internal/strictjson"
)

const (
	lengthSize  = 8           // bytes of the header's length
	maxHeader   = 100_000_000 // bytes of a header
	metadataKey = "__metadata__"
)

// Info describes a tensor.
type Info struct {
	Name   string
	DType  DType
	Shape  []int // dimensions, outermost first; empty for a scalar
	Offset int64 // of the first byte of data, from the start of the file
	Size   int64 // bytes of data
}

// DataSize returns the bytes that a tensor of type d and the given shape takes.
// It refuses products past 63 bits even where another dimension is zero, so
// that no caller's product of some of the dimensions overflows, and tensors of
// a type narrower than a byte that end within one.
func (d DType) DataSize(shape []int) (int64, error) {
	if d.Bits() == 0 {
		return 0, fmt.Errorf("unknown dtype %q", string(d))
	}
	elements, empty := uint64(1), false
	var over uint64
	for i, n := range shape {
		if n < 0 {
			return 0, fmt.Errorf("dimension %d of shape %v is negative", i, shape)
		}
		if n == 0 {
			empty = true
			continue
		}
		if over, elements = bits.Mul64(elements, uint64(n)); over != 0 {
			return 0, fmt.Errorf("the size of %s %v overflows 63 bits", d, shape)
		}
	}
	hi, lo := bits.Mul64(elements, uint64(d.Bits()))
	size := hi<<61 | lo>>3
	switch {
	case hi>>3 != 0 || size > math.MaxInt64:
		return 0, fmt.Errorf("the size of %s %v overflows 63 bits", d, shape)
	case empty:
		return 0, nil
	case lo%8 != 0:
		return 0, fmt.Errorf("%s %v ends within a byte", d, shape)
	}
	return int64(size), nil
}

// parseHeader reads the header, whose payload has the given size, and returns
// the metadata and the tensors in the order of their data. Their offsets are
// relative to the payload.
func parseHeader(header []byte, payload int64) (map[string]string, []Info, *Error) {
	if !utf8.Valid(header) {
		return nil, nil, malformed("", "the header is not UTF-8")
	}
	if len(header) == 0 || header[0] != '{' {
		return nil, nil, malformed("", "the header does not begin with '{'")
	}
	p := &parser{header: header, dec: json.NewDecoder(bytes.NewReader(header))}
	p.dec.UseNumber()

	var meta map[string]string
	var infos []Info
	err := p.object(func(key string) error {
		if key != metadataKey {
			info, err := p.tensor(key, payload)
			if err != nil {
				return &Error{Tensor: key, Reason: err.Error(), Err: ErrFormat}
			}
			infos = append(infos, info)
			return nil
		}
		if p.null() { // as written by a program that has no metadata
			return nil
		}
		meta = make(map[string]string)
		return p.object(func(key string) error {
			s, err := p.string()
			if err != nil {
				return fmt.Errorf("metadata %q: %w", key, err)
			}
			meta[key] = s
			return nil
		})
	})
	if err != nil {
		if e, ok := errors.AsType[*Error](err); ok {
			return nil, nil, e
		}
		return nil, nil, malformed("", "header: %v", err)
	}
	if rest := header[p.dec.InputOffset():]; len(bytes.TrimLeft(rest, " \t\r\n")) != 0 {
		return nil, nil, malformed("", "header: content after the closing brace at byte %d", p.dec.InputOffset())
	}
	if err := tile(infos, payload); err != nil {
		return nil, nil, err
	}
	return meta, infos, nil
}

// tile sorts infos by the place of their data and checks that they cover the
// payload exactly. Tensors of no bytes at one place keep their order.
func tile(infos []Info, payload int64) *Error {
	slices.SortStableFunc(infos, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Size, b.Size))
	})
	var end int64
	for i := range infos {
		t := &infos[i]
		if t.Offset < end {
			return malformed(t.Name, "data at payload byte %d overlaps that of another tensor, which ends at %d", t.Offset, end)
		}
		if t.Offset > end {
			return malformed(t.Name, "payload bytes %d to %d, before this tensor's data, belong to no tensor", end, t.Offset)
		}
		end += t.Size
	}
	if end != payload {
		return malformed("", "payload bytes %d to %d, at the end of the file, belong to no tensor", end, payload)
	}
	return nil
}

// parser takes a header apart by tokens, since decoding into a map would hide
// duplicate keys.
type parser struct {
	header []byte
	dec    *json.Decoder
}

// tensor reads one tensor's description.
func (p *parser) tensor(name string, payload int64) (Info, error) {
	t := Info{Name: name}
	var begin, end int64
	var have int
	err := p.object(func(key string) (err error) {
		have++
		switch key {
		case "dtype":
			var s string
			s, err = p.string()
			t.DType = DType(s)
		case "shape":
			t.Shape = []int{}
			err = p.array(func(int) error {
				n, err := p.integer(strconv.IntSize - 1)
				t.Shape = append(t.Shape, int(n))
				return err
			})
		case "data_offsets":
			n := 0
			err = p.array(func(i int) (err error) {
				n++
				switch i {
				case 0:
					begin, err = p.integer(63)
				case 1:
					end, err = p.integer(63)
				default:
					err = errors.New("more than two numbers")
				}
				return err
			})
			if err == nil && n != 2 {
				err = errors.New("fewer than two numbers")
			}
		default:
			return fmt.Errorf("unknown field %q", key)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	if err != nil {
		return t, err
	}
	if have != 3 { // three distinct known fields are all of them
		return t, errors.New("dtype, shape or data_offsets is missing")
	}
	if t.Size, err = t.DType.DataSize(t.Shape); err != nil {
		return t, err
	}
	if begin > end {
		return t, fmt.Errorf("data_offsets: begin %d is past end %d", begin, end)
	}
	if end > payload {
		return t, fmt.Errorf("data_offsets: end %d is past the payload's %d bytes", end, payload)
	}
	if end-begin != t.Size {
		return t, fmt.Errorf("data_offsets: range of %d bytes, but %s %v takes %d", end-begin, t.DType, t.Shape, t.Size)
	}
	t.Offset = begin
	return t, nil
}

// object reads an object and calls member after each key.
func (p *parser) object(member func(key string) error) error {
	if err := p.delim('{', "an object"); err != nil {
		return err
	}
	seen := make(map[string]bool)
	for p.dec.More() {
		key, err := p.string()
		if err != nil {
			return err
		}
		if seen[key] {
			return fmt.Errorf("duplicate key %q", key)
		}
		seen[key] = true
		if err := member(key); err != nil {
			return err
		}
	}
	return p.delim('}', "the end of the object")
}

// array reads an array and calls element at each.
func (p *parser) array(element func(i int) error) error {
	if err := p.delim('[', "an array"); err != nil {
		return err
	}
	for i := 0; p.dec.More(); i++ {
		if err := element(i); err != nil {
			return err
		}
	}
	return p.delim(']', "the end of the array")
}

func (p *parser) delim(want json.Delim, what string) error {
	t, err := p.token()
	if err == nil && t != want {
		err = p.unexpected(t, what)
	}
	return err
}

func (p *parser) string() (string, error) {
	start := p.dec.InputOffset()
	t, err := p.token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", p.unexpected(t, "a string")
	}
	// The decoder replaces half of a surrogate pair, which would rename a tensor.
	if strings.ContainsRune(s, utf8.RuneError) && strictjson.HalfSurrogate(p.header[start:p.dec.InputOffset()]) {
		return "", fmt.Errorf("header byte %d: half a surrogate pair in string %q", start, s)
	}
	return s, nil
}

// null consumes the next value if it is null.
func (p *parser) null() bool {
	rest := bytes.TrimLeft(p.header[p.dec.InputOffset():], ": \t\r\n")
	if !bytes.HasPrefix(rest, []byte("null")) {
		return false
	}
	_, err := p.dec.Token()
	return err == nil
}

// integer reads an integer in [0, 2^bits).
func (p *parser) integer(bits int) (int64, error) {
	t, err := p.token()
	if err != nil {
		return 0, err
	}
	s, ok := t.(json.Number)
	if !ok {
		return 0, p.unexpected(t, "an integer")
	}
	n, err := strconv.ParseUint(s.String(), 10, bits)
	if err != nil {
		return 0, p.unexpected(t, fmt.Sprintf("an integer in [0, 2^%d)", bits))
	}
	return int64(n), nil
}

func (p *parser) token() (json.Token, error) {
	t, err := p.dec.Token()
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("header byte %d: %w", p.dec.InputOffset(), err)
	}
	return t, nil
}

func (p *parser) unexpected(t json.Token, want string) error {
	var got string
	switch t := t.(type) {
	case json.Delim:
		got = t.String()
	case json.Number:
		got = t.String()
	case string:
		got = strconv.QuoteToASCII(t)
	case bool:
		got = strconv.FormatBool(t)
	case nil:
		got = "null"
	}
	if len(got) > 64 {
		got = got[:64] + "..."
	}
	return fmt.Errorf("header byte %d: %s where %s belongs", p.dec.InputOffset(), got, want)
}

// appendHeader appends the header of the described file, padded with spaces to
// a multiple of 8 bytes, with metadata in the order of its keys.
func appendHeader(dst []byte, metadata map[string]string, infos []Info) ([]byte, error) {
	start := len(dst)
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	quote := func(s string) error {
		if !utf8.ValidString(s) {
			return fmt.Errorf("%q is not UTF-8", s)
		}
		buf.Reset()
		if err := enc.Encode(s); err != nil {
			return err
		}
		dst = append(dst, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...)
		return nil
	}

	dst = append(dst, '{')
	if len(metadata) != 0 {
		dst = append(dst, `"`+metadataKey+`":{`...)
		keys := make([]string, 0, len(metadata))
		for k := range metadata {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for i, k := range keys {
			if i != 0 {
				dst = append(dst, ',')
			}
			if err := quote(k); err != nil {
				return nil, fmt.Errorf("metadata key: %w", err)
			}
			dst = append(dst, ':')
			if err := quote(metadata[k]); err != nil {
				return nil, fmt.Errorf("metadata %q: %w", k, err)
			}
		}
		dst = append(dst, '}')
	}
	var offset int64
	for i, t := range infos {
		if i != 0 || len(metadata) != 0 {
			dst = append(dst, ',')
		}
		if err := quote(t.Name); err != nil {
			return nil, fmt.Errorf("tensor name: %w", err)
		}
		dst = append(dst, `:{"dtype":"`...)
		dst = append(dst, t.DType...)
		dst = append(dst, `","shape":[`...)
		for j, n := range t.Shape {
			if j != 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendInt(dst, int64(n), 10)
		}
		dst = append(dst, `],"data_offsets":[`...)
		dst = strconv.AppendInt(dst, offset, 10)
		dst = append(dst, ',')
		offset += t.Size
		dst = strconv.AppendInt(dst, offset, 10)
		dst = append(dst, `]}`...)
	}
	dst = append(dst, '}')
	for (len(dst)-start)%8 != 0 {
		dst = append(dst, ' ')
	}
	return dst, nil
}
