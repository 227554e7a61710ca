// Command plot draws docs/quality.svg from what make quality measured:
//
//	plot RESULTS.json OUT.svg
//
// It is a module of its own, so that the project does not depend on gonum/plot.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"image/color"
	"log"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// row is a measurement as internal/tools/quality/results.json has it.
type row struct {
	Model, Text, Setting, Format string
	KL                           float64 `json:"kl"`
	BitsLimit                    float64 `json:"bits_limit"`
}

// line joins formats, which have the names of internal/tools/quality/formats.json.
type line struct {
	name    string
	color   color.Color
	shape   draw.GlyphDrawer
	labels  vg.Point // where a label begins, seen from its point
	formats []string
}

var series = []line{
	{"groups", color.RGBA{0xb0, 0x3a, 0x2e, 0xff}, draw.BoxGlyph{}, vg.Point{X: 5, Y: 4}, []string{"q3_0 / q3_0 search", "q4_0 / q4_0 search", "q8_0 / q3_0", "q8_0 / q4_0 search"}},
	{"row levels", color.RGBA{0x2e, 0x7d, 0x32, 0xff}, draw.PyramidGlyph{}, vg.Point{X: 5, Y: 4}, []string{"r4 centred / r4", "r5 centred / r4"}},
	{"row trellis", color.RGBA{0x1a, 0x52, 0x9c, 0xff}, draw.CircleGlyph{}, vg.Point{X: -52, Y: -10}, []string{"t2 centred / t2", "t3 centred / t3", "t4 centred / t4"}},
}

var (
	models   = []string{"SmolLM2-135M", "Gemma-3-270M"}
	settings = []setting{{"prefix", "after a stored prefix", 2e-4, 0.2}, {"all", "every token coded", 2e-3, 1}}
)

// setting is one of quality.py, with what its panels show.
type setting struct {
	name, title string
	min, max    float64
}

// points returns the bits of formats in the limit and the mean of their KL divergences over the texts.
func points(rows []row, model, setting string, formats []string) (plotter.XYs, error) {
	var xys plotter.XYs
	for _, format := range formats {
		var p plotter.XY
		var bits, kl int
		for _, r := range rows {
			if r.Model != model || r.Format != format {
				continue
			}
			if r.Setting == "prefix" {
				p.X += r.BitsLimit
				bits++
			}
			if r.Setting == setting {
				p.Y += r.KL
				kl++
			}
		}
		if bits == 0 || kl == 0 {
			return nil, fmt.Errorf("no %s of %s, setting %s", format, model, setting)
		}
		p.X /= float64(bits)
		p.Y /= float64(kl)
		xys = append(xys, p)
	}
	return xys, nil
}

// panel draws one model in one setting.
func panel(rows []row, model string, s setting) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = model + ", " + s.title
	p.X.Label.Text = "bits per element, in the limit"
	p.Y.Label.Text = "KL divergence, nats per token"
	p.X.Min, p.X.Max = 1, 8.2
	p.X.Tick.Marker = plot.ConstantTicks{{Value: 2, Label: "2"}, {Value: 3, Label: "3"}, {Value: 4, Label: "4"}, {Value: 5, Label: "5"}, {Value: 6, Label: "6"}, {Value: 7, Label: "7"}}
	p.Y.Scale = plot.LogScale{}
	p.Y.Tick.Marker = plot.LogTicks{Prec: -1}
	p.Y.Min, p.Y.Max = s.min, s.max
	p.Add(plotter.NewGrid())
	p.Legend.Left = true
	for _, l := range series {
		if err := l.add(p, rows, model, s.name); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// add draws a line and its labels.
func (l line) add(p *plot.Plot, rows []row, model, setting string) error {
	xys, err := points(rows, model, setting, l.formats)
	if err != nil {
		return err
	}
	path, glyphs, err := plotter.NewLinePoints(xys)
	if err != nil {
		return err
	}
	path.Color, glyphs.Color, glyphs.Shape = l.color, l.color, l.shape
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: xys, Labels: l.formats})
	if err != nil {
		return err
	}
	labels.Offset = l.labels
	for i := range labels.TextStyle {
		labels.TextStyle[i].Font.Size = vg.Points(7)
		labels.TextStyle[i].Color = l.color
	}
	p.Add(path, glyphs, struct{ plot.Plotter }{labels}) // a plotter alone: axes that fit the points, not the labels
	p.Legend.Add(l.name, path, glyphs)
	return nil
}

// picture returns an SVG with a panel for each model and setting. Its first comment names the results.
func picture(results []byte) ([]byte, error) {
	var rows []row
	if err := json.Unmarshal(results, &rows); err != nil {
		return nil, err
	}
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
	canvas := vgsvg.New(vg.Points(900), vg.Points(680))
	all := draw.New(canvas)
	tiles := draw.Tiles{Rows: len(settings), Cols: len(models), PadX: vg.Points(12), PadY: vg.Points(12)}
	for i, s := range settings {
		for j, m := range models {
			p, err := panel(rows, m, s)
			if err != nil {
				return nil, err
			}
			p.Draw(tiles.At(all, j, i))
		}
	}
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, err
	}
	comment := fmt.Appendf(nil, "<!-- results.json: SHA-256 %x -->\n<svg ", sha256.Sum256(results))
	return bytes.Replace(out.Bytes(), []byte("<svg "), comment, 1), nil
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: plot RESULTS.json OUT.svg")
	}
	results, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	svg, err := picture(results)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[2], svg, 0o644); err != nil {
		log.Fatal(err)
	}
}
