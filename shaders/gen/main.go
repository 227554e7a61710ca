// Command gen writes layout.metal and instances.metal from the Go tables. With -table it
// prints the kernel table of docs/metal.md instead.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"

	"github.com/turbotrellis/turbotrellis/shaders"
)

func main() {
	table := flag.Bool("table", false, "print the kernel table in Markdown")
	flag.Parse()
	if *table {
		fmt.Print(shaders.Table())
		return
	}
	for name, source := range map[string]string{
		"layout.metal":    shaders.Layout(),
		"instances.metal": shaders.Instances(),
	} {
		if err := os.WriteFile(name, []byte(source), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
