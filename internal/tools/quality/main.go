// Command quality puts what quality.py measured into the tables of docs/quality.md and README.md:
//
//	go run ./internal/tools/quality
//
// "make quality" runs quality.py, which needs Python and the packages in requirements.txt, then this, then
// internal/tools/plot.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// row is one measurement of results.json; quality.py says what the fields are.
type row struct {
	Model, Text, Setting, Format string
	Perplexity                   float64
	KL                           float64 `json:"kl"`
	Median                       float64 `json:"kl_median"`
	Top1                         float64 `json:"top1"`
	BitsStored                   float64 `json:"bits_stored"`
	BitsLong                     float64 `json:"bits_long"`
	BitsLimit                    float64 `json:"bits_limit"`
}

// format is a row of formats.json.
type format struct {
	Name    string
	Preset  string
	Variant bool // one of the rows that say what a part is worth
	Flags   []string
}

// measured is everything in the folder of this tool.
type measured struct {
	formats []format
	rows    []row
	before  []earlierRow
}

var (
	models = []string{"SmolLM2-135M", "Gemma-3-270M"}
	texts  = []string{"gpl", "gomem"}
)

func load(folder string) (measured, error) {
	var m measured
	for name, v := range map[string]any{"formats.json": &m.formats, "results.json": &m.rows, "earlier.json": &m.before} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return m, err
		}
		if err := json.Unmarshal(text, v); err != nil {
			return m, fmt.Errorf("%s: %w", name, err)
		}
	}
	return m, nil
}

// find returns the measurement of one format, or of none where that is "-".
func (m measured) find(model, text, setting, format string) (row, error) {
	for _, r := range m.rows {
		if r.Model == model && r.Text == text && r.Setting == setting && r.Format == format {
			return r, nil
		}
	}
	return row{}, fmt.Errorf("results.json has no %s, %s, %s, %s", model, text, setting, format)
}

// small prints x with two significant digits and without the zero before the point.
func small(x float64) string {
	s := fmt.Sprintf("%.4f", x)
	if x >= 0.00995 {
		s = fmt.Sprintf("%.3f", x)
	}
	return strings.TrimPrefix(s, "0")
}

// bits prints x with two decimals, halves up: 4.125 is 4.13.
func bits(x float64) string { return fmt.Sprintf("%.2f", math.Floor(100*x+0.5+1e-9)/100) }

// pair prints what get finds in the measurements of both texts.
func (m measured) pair(model, setting, format, verb string, get func(row) float64) (string, error) {
	var s []string
	for _, text := range texts {
		r, err := m.find(model, text, setting, format)
		if err != nil {
			return "", err
		}
		if verb == "" {
			s = append(s, small(get(r)))
		} else {
			s = append(s, fmt.Sprintf(verb, get(r)))
		}
	}
	if s[0] == s[1] && verb != "" {
		s = s[:1]
	}
	return strings.Join(s, " / "), nil
}

// table prints the formats that are variants, or that are not, in one setting.
func (m measured) table(setting string, variant bool) (string, error) {
	var b strings.Builder
	b.WriteString("| keys / values | preset | bits |")
	for _, model := range models {
		if setting == "prefix" {
			fmt.Fprintf(&b, " %s: bits of 512, of 1,024 tokens |", model)
		}
		fmt.Fprintf(&b, " %s: KL | top-1 |", model)
	}
	b.WriteString("\n" + strings.Repeat("|---", strings.Count(b.String(), "|")-1) + "|\n")
	for _, f := range m.formats {
		if f.Variant != variant {
			continue
		}
		var limits []string
		var cells []string
		for _, model := range models {
			stored, err := m.find(model, texts[0], "prefix", f.Name) // the same bytes for every text
			if err != nil {
				return "", err
			}
			if s := bits(stored.BitsLimit); !slices.Contains(limits, s) {
				limits = append(limits, s)
			}
			if setting == "prefix" {
				cells = append(cells, bits(stored.BitsStored)+", "+bits(stored.BitsLong))
			}
			kl, err := m.pair(model, setting, f.Name, "", func(r row) float64 { return r.KL })
			if err != nil {
				return "", err
			}
			top, err := m.pair(model, setting, f.Name, "%.3f", func(r row) float64 { return r.Top1 })
			if err != nil {
				return "", err
			}
			cells = append(cells, kl, top)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.Name, f.Preset, strings.Join(limits, " / "), strings.Join(cells, " | "))
	}
	return b.String(), nil
}

// untouched prints the perplexities.
func (m measured) untouched() (string, error) {
	var b strings.Builder
	b.WriteString("| perplexity | gpl | gomem |\n|---|---|---|\n")
	for _, model := range models {
		fmt.Fprintf(&b, "| %s |", model)
		for _, text := range texts {
			r, err := m.find(model, text, "untouched", "-")
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, " %.1f |", r.Perplexity)
		}
		b.WriteString("\n")
	}
	return b.String(), nil
}

// earlier prints the KL divergences of earlier.json in one setting, and those of results.json divided by them.
func (m measured) earlier(setting string) (string, error) {
	var b strings.Builder
	b.WriteString("| keys / values |")
	for _, model := range models {
		fmt.Fprintf(&b, " %s: KL | ratio | median | ratio |", model)
	}
	b.WriteString("\n" + strings.Repeat("|---", 1+4*len(models)) + "|\n")
	for _, e := range m.before {
		if e.Setting != setting {
			continue
		}
		fmt.Fprintf(&b, "| %s |", e.Format)
		for _, model := range models {
			var kl, median, klRatio, medianRatio []string
			for i, text := range texts {
				r, err := m.find(model, text, setting, e.Format)
				if err != nil {
					return "", err
				}
				kl = append(kl, small(e.KL[model][i]))
				klRatio = append(klRatio, fmt.Sprintf("%.2f", r.KL/e.KL[model][i]))
				median = append(median, small(e.Median[model][i]))
				medianRatio = append(medianRatio, fmt.Sprintf("%.2f", r.Median/e.Median[model][i]))
			}
			for _, cell := range [][]string{kl, klRatio, median, medianRatio} {
				fmt.Fprintf(&b, " %s |", strings.Join(cell, " / "))
			}
		}
		b.WriteString("\n")
	}
	return b.String(), nil
}

// earlierRow is a row of earlier.json: means and medians of KL divergences, by model, of both texts.
type earlierRow struct {
	Setting, Format string
	KL              map[string][2]float64 `json:"kl"`
	Median          map[string][2]float64
}

// presets prints the formats of presets after a stored prefix.
func (m measured) presets() (string, error) {
	var b strings.Builder
	b.WriteString("| preset | keys / values | bits |")
	for _, model := range models {
		fmt.Fprintf(&b, " %s |", model)
	}
	b.WriteString("\n" + strings.Repeat("|---", 3+len(models)) + "|\n")
	for _, f := range m.formats {
		if f.Preset == "" {
			continue
		}
		var limits, cells []string
		for _, model := range models {
			r, err := m.find(model, texts[0], "prefix", f.Name)
			if err != nil {
				return "", err
			}
			if s := bits(r.BitsLimit); !slices.Contains(limits, s) {
				limits = append(limits, s)
			}
			kl, err := m.pair(model, "prefix", f.Name, "", func(r row) float64 { return r.KL })
			if err != nil {
				return "", err
			}
			cells = append(cells, kl)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Preset, f.Name, strings.Join(limits, " / "), strings.Join(cells, " | "))
	}
	return b.String(), nil
}

// pages has the tables of each page.
var pages = map[string][]string{
	"docs/quality.md": {"untouched", "prefix", "all", "prefix variants", "all variants", "earlier prefix", "earlier all"},
	"README.md":       {"presets"},
}

// text returns a table.
func (m measured) text(name string) (string, error) {
	switch name {
	case "untouched":
		return m.untouched()
	case "presets":
		return m.presets()
	case "earlier prefix", "earlier all":
		return m.earlier(strings.TrimPrefix(name, "earlier "))
	}
	setting, variants := strings.CutSuffix(name, " variants")
	return m.table(setting, variants)
}

// fill replaces what stands between <!-- NAME --> and <!-- end --> in page by the tables of those names.
func (m measured) fill(page string, names []string) (string, error) {
	for _, name := range names {
		text, err := m.text(name)
		if err != nil {
			return "", err
		}
		start := fmt.Sprintf("<!-- %s -->\n", name)
		before, rest, found := strings.Cut(page, start)
		_, after, closed := strings.Cut(rest, "<!-- end -->\n")
		if !found || !closed {
			return "", fmt.Errorf("no table between %q and <!-- end -->", strings.TrimSpace(start))
		}
		page = before + start + text + "<!-- end -->\n" + after
	}
	return page, nil
}

func run(root string) error {
	m, err := load(filepath.Join(root, "internal", "tools", "quality"))
	if err != nil {
		return err
	}
	for name, tables := range pages {
		path := filepath.Join(root, name)
		page, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		filled, err := m.fill(string(page), tables)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(path, []byte(filled), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	log.SetFlags(0)
	if err := run("."); err != nil {
		log.Fatal(err)
	}
}
