// Command gen writes layout.metal and instances.metal from the Go tables.
package main

import (
	"log"
	"os"

	"github.com/turbotrellis/turbotrellis/shaders"
)

func main() {
	for name, source := range map[string]string{
		"layout.metal":    shaders.Layout(),
		"instances.metal": shaders.Instances(),
	} {
		if err := os.WriteFile(name, []byte(source), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
