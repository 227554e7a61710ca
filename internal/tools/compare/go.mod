module github.com/turbotrellis/turbotrellis/internal/tools/compare

go 1.26.0

require github.com/turbotrellis/turbotrellis v0.0.0

require github.com/odvcencio/turboquant v0.1.2

replace github.com/turbotrellis/turbotrellis => ../../..
