// Command gen writes layout.metal from the argument structs. With -table it prints the kernel
// table of docs/metal.md instead.
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
	if err := os.WriteFile("layout.metal", []byte(shaders.Layout()), 0o644); err != nil {
		log.Fatal(err)
	}
}
