package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// TestResultBudget: whatever a job has to say, its answer is short, valid, and says what it left out.
func TestResultBudget(t *testing.T) {
	repeat := func(n int, text string) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf("%s%d", text, i))
		}
		return list
	}
	var diagnostics []adapters.Diagnostic
	for _, text := range repeat(200, strings.Repeat("\x1b[31m\u00fc", 200)) {
		diagnostics = append(diagnostics, adapters.Diagnostic{Severity: adapters.Error, File: "a.v", Line: 1, Message: text})
	}
	many := map[string]any{}
	for _, key := range repeat(3000, "key") {
		many[key] = 1
	}
	var outputs []job.Published
	for _, path := range repeat(300, strings.Repeat("p", 500)) {
		outputs = append(outputs, job.Published{Name: "out", Path: path, SHA256: strings.Repeat("0", 64)})
	}
	log := job.Log{Head: strings.Repeat("\x1b\u20ac\xff", 10_000), Tail: strings.Repeat("\"\\\n", 20_000) + "the end", Bytes: 1 << 30}
	for _, tc := range []struct {
		name string
		r    job.Result
		cut  []string
	}{
		{"small", job.Result{Code: job.OK, Log: job.Log{Head: "a\n", Bytes: 2}}, nil},
		{"log", job.Result{Code: job.ToolFailed, Log: log}, []string{"log"}},
		{"head_alone", job.Result{Code: job.ToolFailed, Log: job.Log{Head: strings.Repeat("x", 60_000) + "the end", Bytes: 60_007}}, []string{"log"}},
		{"diagnostics", job.Result{Code: job.OK, Diagnostics: diagnostics}, []string{"diagnostics"}},
		{"undeclared", job.Result{Code: job.OK, Undeclared: repeat(100, strings.Repeat("\x01", 1000))}, []string{"undeclared_files"}},
		{"list_in_data", job.Result{Code: job.OK, Data: map[string]any{"paths": map[string]any{"slow": repeat(6000, "path")}, "n": 7}}, []string{"data.paths.slow"}},
		{"data", job.Result{Code: job.OK, Data: many}, []string{"data"}},
		{"outputs", job.Result{Code: job.OK, Outputs: outputs}, []string{"outputs"}},
		{"message", job.Result{Code: job.InvalidArgument, Message: strings.Repeat("\x02", 100_000)}, nil},
		{"all", job.Result{Code: job.ToolFailed, Message: strings.Repeat("m", 9000), Log: log, Diagnostics: diagnostics, Data: many}, []string{"log", "diagnostics", "data"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			res := toResult(ended(tc.r))
			raw, isRaw := res.StructuredContent.(json.RawMessage)
			text, isText := res.Content[0].(*mcp.TextContent)
			if !isRaw || !isText {
				t.Fatalf("%T, %T", res.StructuredContent, res.Content[0])
			}
			if n, m := utf8.RuneCount(raw), utf8.RuneCountInString(text.Text); n+m > answerBudget || m > textBudget {
				t.Errorf("%d and %d characters", n, m)
			}
			if strings.ContainsAny(text.Text, "\x1b\x01\x02") || !utf8.ValidString(text.Text) || !utf8.Valid(raw) {
				t.Errorf("controls, or no UTF-8: %q", text.Text)
			}
			var got terminal
			if err := json.Unmarshal(raw, &got); err != nil {
				t.Fatal(err)
			}
			for _, name := range tc.cut {
				if got.Cut[name] <= 0 {
					t.Errorf("cut does not say how much of %s is missing: %v", name, got.Cut)
				}
			}
			if len(got.Cut) != len(tc.cut) {
				t.Errorf("cut: %v, want %q", got.Cut, tc.cut)
			}
			if ends := strings.HasSuffix(tc.r.Log.Head+tc.r.Log.Tail, "the end"); ends && (!strings.HasSuffix(got.Log.Tail, "the end") || !strings.HasSuffix(text.Text, "the end")) {
				t.Errorf("the end of the log is missing: %q, %q", got.Log.Tail, text.Text)
			}
		})
	}
}
