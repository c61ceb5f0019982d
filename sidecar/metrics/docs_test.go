package metrics

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/test/house/doctable"
)

var update = flag.Bool("update", false, "rewrite the table in docs/metrics.md")

// TestTables holds the table of docs/metrics.md against what is gathered.
func TestTables(t *testing.T) {
	doctable.Check(t, *update, "docs/metrics.md", "metrics", rendered(t))
}

// rendered is what a scrape finds, in the order of the table. Of closed sets that are no tools and no codes it shows the values.
func rendered(t *testing.T) string {
	families, err := sink().registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| metric | type | labels | counts or says | moved by |\n|---|---|---|---|---|\n")
	for _, m := range table {
		for _, f := range families {
			if f.GetName() != "eda_sidecar_"+m.name {
				continue
			}
			values := map[string]map[string]bool{}
			for _, series := range f.GetMetric() {
				for _, l := range series.GetLabel() {
					if values[l.GetName()] == nil {
						values[l.GetName()] = map[string]bool{}
					}
					values[l.GetName()][l.GetValue()] = true
				}
			}
			var labels []string
			for _, name := range slices.Sorted(maps.Keys(values)) {
				label := "`" + name + "`"
				if name == "resolution" || name == "proof" {
					label += " (" + strings.Join(slices.Sorted(maps.Keys(values[name])), ", ") + ")"
				}
				labels = append(labels, label)
			}
			kind := []string{strings.ToLower(f.GetType().String())}
			for _, bucket := range f.GetMetric()[0].GetHistogram().GetBucket() {
				kind = append(kind, fmt.Sprint(bucket.GetUpperBound()))
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", f.GetName(), strings.Join(kind, " "), strings.Join(labels, ", "), f.GetHelp(), mover(m))
		}
	}
	return b.String()
}

func mover(m metric) string {
	switch {
	case m.event != "":
		return "event `" + string(m.event) + "`"
	case m.finished != nil:
		return "answer"
	}
	return "scrape"
}
