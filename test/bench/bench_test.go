package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/test/house/doctable"
)

// TestDocument wants every row of the list in the document, and where and when it was measured. The numbers are a
// machine's, and not compared.
func TestDocument(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(doctable.Root(t), document))
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	report := func(findings []string) {
		for _, f := range findings {
			t.Error(f)
		}
	}
	known := append([]string{"host"}, tables...)
	for _, r := range rows {
		if !strings.Contains(" "+strings.Join(known, " ")+" ", " "+r.table+" ") {
			t.Errorf("row %q is in no table", r.what)
		}
	}
	report(missing(text, "docs/benchmarks.md", "host"))
	report(missing(text, "docs/benchmarks.md", "containment"))
	report(missing(text, "docs/benchmarks.md", "transaction"))
	report(missing(text, "docs/benchmarks.md", "process"))
	report(missing(text, "docs/benchmarks.md", "server"))
	for table, row := range map[string]string{rows[0].table: rows[0].what, "host": "commit"} {
		if got := missing(strings.Replace(text, "\n| "+row+" |", "\n| other |", 1), document, table); len(got) != 1 {
			t.Errorf("control: row %q was dropped, found %q", row, got)
		}
	}
}

// missing returns what the table called name of the document should have and has not.
func missing(text, file, name string) (findings []string) {
	_, text, _ = strings.Cut(text, "<!-- table:"+name+" -->")
	text, _, _ = strings.Cut(text, "<!-- /table:"+name+" -->")
	var want []string
	if name == "host" {
		want = hostRows
	}
	for _, r := range rows {
		if r.table == name {
			want = append(want, r.what)
		}
	}
	for _, w := range want {
		_, rest, found := strings.Cut(text, "\n| "+w+" |")
		rest, _, _ = strings.Cut(rest, "\n")
		if !found || strings.Trim(rest, " |") == "" {
			findings = append(findings, fmt.Sprintf("%s: table %q has no row %q: run make bench", file, name, w))
		}
	}
	return findings
}

func TestRowsNameBenchmarks(t *testing.T) {
	for _, r := range rows {
		name, _, _ := strings.Cut(r.bench, "/")
		known := false
		for _, b := range benchmarks {
			known = known || b.name == name
		}
		if !known || (r.mode == "") == (r.metric == "") {
			t.Errorf("row %q: benchmark %q is known: %t, mode %q, metric %q", r.what, r.bench, known, r.mode, r.metric)
		}
	}
}

func TestRead(t *testing.T) {
	all := metrics{}
	n := all.read(strings.NewReader("goos: linux\nBenchmarkKill/10-2 \t 10\t 182 ns/op\t 21.5 ours-p50-us\nBenchmarkLeft \t 5 \t 1 ns/op\t -1.000 threads\nPASS\n"))
	if n != 2 || all["Kill/10"]["ours-p50-us"] != 21.5 || all["Left"]["threads"] != -1 {
		t.Errorf("%d results, %v", n, all)
	}
}

func TestBounds(t *testing.T) {
	all := metrics{"B": {
		"a-p10-us": 90, "a-p50-us": 100, "a-p99-us": 2500, "b-p10-us": 40, "b-p50-us": 50, "b-p99-us": 60, "left": 0, "rate": 60, "floor-rate": 100,
	}}
	for _, tt := range []struct {
		name string
		row  row
		want string
		bad  bool
	}{
		{"held", row{mode: "a", base: "b", bounds: []bound{atMost("ratio", 2), atMost("p99", 2.5*ms)}}, "|  | 90 us | 100 us | 2.5 ms | 2x | ratio <= 2x, p99 <= 2.5 ms | pass |\n", false},
		{"ratio", row{mode: "a", base: "b", bounds: []bound{atMost("ratio", 1.9), atMost("p50", 100)}}, "|  | 90 us | 100 us | 2.5 ms | 2x | ratio <= 1.9x, p50 <= 100 us | MISS |\n", true},
		{"over", row{mode: "a", base: "b", bounds: []bound{atMost("over", 49)}}, "|  | 90 us | 100 us | 2.5 ms | 2x | over <= 49 us | MISS |\n", true},
		{"beside", row{mode: "b"}, "|  | 40 us | 50 us | 60 us |  |  |  |\n", false},
		{"zero", row{metric: "left", bounds: []bound{atMost("value", 0)}}, "|  |  | 0 |  |  | value <= 0 | pass |\n", false},
		{"rate", row{metric: "rate", base: "floor-rate", bounds: []bound{atLeast("ratio", 0.55)}}, "|  |  | 60 |  | 0.6x | ratio >= 0.55x | pass |\n", false},
		{"low_rate", row{metric: "rate", base: "floor-rate", bounds: []bound{atLeast("ratio", 0.65)}}, "|  |  | 60 |  | 0.6x | ratio >= 0.65x | MISS |\n", true},
		{"no_base", row{metric: "rate", base: "c", bounds: []bound{atMost("ratio", 1)}}, "|  |  | 60 |  | +Infx | ratio <= 1x | MISS |\n", true},
		{"not_measured", row{mode: "c", bounds: []bound{atMost("p50", 1)}}, "|  | | " + absent + " | | | p50 <= 1 us | |\n", true},
		{"peer_not_installed", row{mode: "c", base: "sandbox", bounds: []bound{atLeast("ratio", 1)}}, "|  | | " + absent + " | | | ratio >= 1x | |\n", false},
	} {
		tt.row.bench = "B"
		if got, bad := tt.row.render(all); got != tt.want || bad != tt.bad {
			t.Errorf("%s: got %q, bad %t; want %q, bad %t", tt.name, got, bad, tt.want, tt.bad)
		}
	}
}
