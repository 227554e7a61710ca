// Package enum gives small numbered types their text forms.
package enum

import (
	"fmt"
	"slices"
	"strings"

	"github.com/turbotrellis/turbotrellis/internal/fault"
)

// String returns name number i, or kind(i) where there is none. An empty name is none.
func String(kind string, names []string, i int) string {
	if i < len(names) && names[i] != "" {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", kind, i)
}

// Marshal returns name number i, or an error.
func Marshal(kind, what string, names []string, i int) ([]byte, error) {
	if i < len(names) && names[i] != "" {
		return []byte(names[i]), nil
	}
	return nil, fault.New(fault.ErrParams, "%s(%d) is not a %s", kind, i, what)
}

// Unmarshal returns the number of the name in text. Its error lists the names.
func Unmarshal(what string, names []string, text []byte) (int, error) {
	if i := slices.Index(names, string(text)); i >= 0 && len(text) > 0 {
		return i, nil
	}
	known := slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == "" })
	return 0, fault.New(fault.ErrParams, "unknown %s %q: want one of %s", what, text, strings.Join(known, ", "))
}
