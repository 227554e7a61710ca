package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"image/color"
	"io"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

//go:embed report.html
var reportTemplate string

// page is what report.html shows.
type page struct {
	*costReport
	Shown              presetReport
	Cost, Keys, Values template.HTML // SVG
	KeyHeads           grid
	ValueHeads         grid
}

// grid is a map of errors by layer and head.
type grid struct {
	Heads []int
	Rows  []gridRow
}

type gridRow struct {
	Layer string
	Cells []gridCell
}

type gridCell struct {
	Error  string
	Colour template.CSS
}

// html writes the report as a page.
func (r *costReport) html(w io.Writer) error {
	t, err := template.New("report").Funcs(template.FuncMap{
		"bytes": bytesText, "hard": hardText, "type": typeText, "worst": worstHead,
		"error": func(n number) string { return fmt.Sprintf("%.4f", n) },
	}).Parse(reportTemplate)
	if err != nil {
		return err
	}
	p := page{costReport: r, Shown: r.detail()}
	if p.Cost, err = r.costPlot(); err != nil {
		return err
	}
	keys, values := func(l layerReport) sideReport { return l.Keys }, func(l layerReport) sideReport { return l.Values }
	if p.Keys, err = r.layerPlot("keys", keys); err != nil {
		return err
	}
	if p.Values, err = r.layerPlot("values", values); err != nil {
		return err
	}
	p.KeyHeads, p.ValueHeads = headGrid(p.Shown.Layers, keys), headGrid(p.Shown.Layers, values)
	var b bytes.Buffer // so that an error leaves no half of a page
	if err := t.Execute(&b, p); err != nil {
		return err
	}
	_, err = w.Write(b.Bytes())
	return err
}

// lineColours are those of the presets, told apart by people who see few colours too (Okabe and Ito).
var lineColours = []color.Color{color.RGBA{0, 114, 178, 255}, color.RGBA{213, 94, 0, 255}, color.RGBA{0, 158, 115, 255}, color.RGBA{204, 121, 167, 255}}

// costPlot draws the errors of keys and values against bits per element.
func (r *costReport) costPlot() (template.HTML, error) {
	p := newPlot("bits per element", "relative error")
	p.X.Min, p.Y.Min = 0, 0
	for i, side := range []struct {
		name string
		of   func(presetReport) sideReport
	}{{"keys", func(p presetReport) sideReport { return p.Keys }}, {"values", func(p presetReport) sideReport { return p.Values }}} {
		var points plotter.XYs
		var names []string
		for _, preset := range r.Presets {
			if preset.Refused == "" && !math.IsNaN(float64(side.of(preset).Error)) {
				points = append(points, plotter.XY{X: side.of(preset).Bits, Y: float64(side.of(preset).Error)})
				names = append(names, " "+preset.Name)
			}
		}
		if len(points) == 0 {
			continue
		}
		scatter, err := plotter.NewScatter(points)
		if err != nil {
			return "", err
		}
		scatter.Color, scatter.Shape, scatter.Radius = lineColours[i], []draw.GlyphDrawer{draw.CircleGlyph{}, draw.SquareGlyph{}}[i], vg.Points(3.5)
		labels, err := plotter.NewLabels(plotter.XYLabels{XYs: points, Labels: names})
		if err != nil {
			return "", err
		}
		for j := range labels.TextStyle {
			labels.TextStyle[j].Color, labels.TextStyle[j].Font.Variant = lineColours[i], "Sans"
		}
		p.Add(scatter, labels)
		p.Legend.Add(side.name, scatter)
		for _, at := range points {
			p.X.Max, p.Y.Max = max(p.X.Max, at.X*1.2), max(p.Y.Max, at.Y*1.15)
		}
	}
	return svg(p)
}

// layerPlot draws the error of each layer, a line per preset.
func (r *costReport) layerPlot(side string, of func(layerReport) sideReport) (template.HTML, error) {
	p := newPlot("layer", "relative error of "+side)
	p.Y.Min = 0
	p.X.Tick.Marker = layerTicks(r.detail().Layers)
	for i, preset := range r.Presets {
		var points plotter.XYs
		for x, l := range preset.Layers {
			if y := float64(of(l).Error); !math.IsNaN(y) {
				points = append(points, plotter.XY{X: float64(x), Y: y})
			}
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return "", err
		}
		line.Color, dots.Color = lineColours[i%len(lineColours)], lineColours[i%len(lineColours)]
		dots.Shape, dots.Radius = draw.CircleGlyph{}, vg.Points(2)
		p.Add(line, dots)
		p.Legend.Add(preset.Name, line, dots)
		for _, at := range points {
			p.Y.Max = max(p.Y.Max, at.Y*1.3) // room for the legend
		}
	}
	return svg(p)
}

// layerTicks marks up to 16 layers by their labels.
func layerTicks(layers []layerReport) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	step := (len(layers) + 15) / 16
	for i, l := range layers {
		if i%step == 0 {
			ticks = append(ticks, plot.Tick{Value: float64(i), Label: l.Layer})
		}
	}
	return ticks
}

func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	for _, style := range []*text.Style{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		style.Font.Variant = "Sans"
	}
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.Legend.Top = true
	p.BackgroundColor = color.Transparent
	g := plotter.NewGrid()
	g.Horizontal.Color, g.Vertical.Color = color.Gray{225}, color.Gray{225}
	p.Add(g)
	return p
}

// svg draws a plot to be part of a page.
func svg(p *plot.Plot) (template.HTML, error) {
	if p.X.Max <= p.X.Min {
		p.X.Min, p.X.Max = p.X.Min-1, p.X.Min+1
	}
	if p.Y.Max <= p.Y.Min {
		p.Y.Max = p.Y.Min + 1
	}
	c := vgsvg.New(7*vg.Inch, 3.6*vg.Inch)
	p.Draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", err
	}
	_, body, ok := strings.Cut(b.String(), "<svg")
	if !ok {
		return "", fmt.Errorf("a plot without an svg element")
	}
	return template.HTML("<svg" + body), nil // text in it is this program's, but for the labels of presets
}

// headGrid colours the errors of heads between the least and the largest.
func headGrid(layers []layerReport, of func(layerReport) sideReport) grid {
	var g grid
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, l := range layers {
		for i, h := range of(l).Heads {
			if i == len(g.Heads) {
				g.Heads = append(g.Heads, i)
			}
			if e := float64(h.Error); !math.IsNaN(e) {
				lo, hi = min(lo, e), max(hi, e)
			}
		}
	}
	for _, l := range layers {
		row := gridRow{Layer: l.Layer}
		for _, h := range of(l).Heads {
			at := 0.0
			if hi > lo && !math.IsNaN(float64(h.Error)) {
				at = (float64(h.Error) - lo) / (hi - lo)
			}
			row.Cells = append(row.Cells, gridCell{fmt.Sprintf("%.4f", h.Error), template.CSS(fmt.Sprintf("hsl(25 90%% %.0f%%)", 96-46*at))})
		}
		g.Rows = append(g.Rows, row)
	}
	return g
}
