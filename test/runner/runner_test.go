package main

import (
	"errors"
	"strings"
	"testing"
)

// good is a stream with nothing wrong in it.
const good = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"run","Package":"p","Test":"TestA/sub"}
{"Action":"pass","Package":"p","Test":"TestA/sub","Elapsed":0}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.003s\n"}
{"Action":"pass","Package":"p","Elapsed":0.003}
`

// Streams recorded from Go 1.26, one for each way in which go test can end without having proven anything.
func TestStreams(t *testing.T) {
	exit1 := errors.New("exit status 1")
	for _, tt := range []struct {
		name   string
		stream string
		exit   error
		want   string // the tally
		says   string // what else the output must contain
	}{
		{"good", good, nil, "2 passed, 0 failed", "ok   p"},
		{"note", strings.Replace(good, "=== RUN   TestA", "    a_test.go:3: NOTE 7 lines", 1), nil, "2 passed, 0 failed", "NOTE 7 lines\n"},
		{"failed", `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: got 1, want 2\n"}
{"Action":"fail","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"fail","Package":"p","Elapsed":0}
`, exit1, "0 passed, 1 failed", "got 1, want 2"},
		{"no_tests", `{"Action":"output","Package":"p","Output":"testing: warning: no tests to run\n"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"pass","Package":"p","Elapsed":0}
`, nil, "0 passed, 1 failed", "refused: p: no test ran"},
		{"no_test_files", `{"Action":"output","Package":"p","Output":"?   \tp\t[no test files]\n"}
{"Action":"skip","Package":"p","Elapsed":0}
`, nil, "0 passed, 1 failed", "refused: p: no test ran"},
		{
			"skipped_subtest", strings.Replace(good, `"pass","Package":"p","Test":"TestA/sub"`, `"skip","Package":"p","Test":"TestA/sub"`, 1),
			nil, "1 passed, 1 failed", "refused: p: TestA/sub was skipped",
		},
		{"cached", strings.Replace(good, `0.003s\n`, `(cached)\n`, 1), nil, "2 passed, 1 failed", "refused: p: a cached result"},
		{"build_failed", `{"ImportPath":"p [p.test]","Action":"build-output","Output":"./a.go:3:1: undefined: x\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail","Package":"p","Elapsed":0,"FailedBuild":"p [p.test]"}
`, exit1, "0 passed, 1 failed", "undefined: x"},
		{"crashed", `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"signal: killed\n"}
{"Action":"fail","Package":"p","Elapsed":0}
`, exit1, "0 passed, 1 failed", "TestA did not end"},
		{
			"exit_status_of_TestMain", strings.Replace(good, `"pass","Package":"p","Elapsed":0.003`, `"fail","Package":"p","Elapsed":0.003`, 1),
			exit1, "2 passed, 1 failed", "failed outside its tests",
		},
		{"truncated", strings.Join(strings.SplitAfter(good, "\n")[:6], ""), exit1, "0 passed, 1 failed", "ended without its result"},
		{"cut_in_a_line", good + `{"Action":"pa`, nil, "2 passed, 1 failed", "unexpected EOF"},
		{"not_asked_for", good + strings.ReplaceAll(good, `"p"`, `"q"`), nil, "2 passed, 1 failed", "q is in the stream"},
		{"status_alone", good, exit1, "2 passed, 1 failed", "no event says why"},
		{"empty", "", nil, "0 passed, 1 failed", "ended without its result"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(func(s string) { out.WriteString(s) })
			r.expect([]string{"p"}, "")
			r.settle(r.read(strings.NewReader(tt.stream)), tt.exit)
			if ok := r.close(); ok != strings.HasSuffix(tt.want, " 0 failed") {
				t.Errorf("close = %t with %q", ok, tt.want)
			}
			if !strings.HasSuffix(out.String(), tt.want+"\n") || !strings.Contains(out.String(), tt.says) {
				t.Errorf("got\n%s\nwant the last line %q, and %q", &out, tt.want, tt.says)
			}
		})
	}
}

func TestNothingIsRefused(t *testing.T) {
	var out strings.Builder
	if newReport(func(s string) { out.WriteString(s) }).close() || !strings.HasSuffix(out.String(), "0 passed, 1 failed\n") {
		t.Errorf("a run without a package passed:\n%s", &out)
	}
}

func TestCheckFlags(t *testing.T) {
	for _, good := range []string{"", "-buildvcs=false", "-mod=mod -p=2", "--trimpath"} {
		if err := checkFlags(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"-run=TestA", "-skip=TestA", "-short", "-tags=x", "-vet=off", "-buildvcs=false -test.run=A", "-count=0", "-exec=true", "-list=.", "-overlay=f"} {
		if err := checkFlags(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestPlan(t *testing.T) {
	var out strings.Builder
	r := newReport(func(s string) { out.WriteString(s) })
	batches := plan(r, map[string]string{
		module + "/a":                           "[a_test.go][]",
		module + "/b":                           "[][]",
		module + "/sidecar/durable/durabletest": "[][]",
		module + "/cgroup/internal/witness":     "[][x_test.go]",
		module + "/test/house":                  "[a_test.go][]",
	})
	if len(batches) != 2 || len(batches[0].packages) != 1 || len(batches[1].packages) != 1 || batches[0].race || !batches[1].race {
		t.Errorf("batches = %+v, want test/house, and a with -race", batches)
	}
	if r.close() || len(r.refusals) != 2 {
		t.Errorf("refusals = %q, want b and the witness", r.refusals)
	}
}

// A build with a tag is run where the tag brings tests, and only there; its results stand beside the ordinary ones.
func TestTags(t *testing.T) {
	only := differing(map[string]string{"p": "[a_test.go][]", "q": "[a_test.go][]"}, map[string]string{"p": "[a_test.go m_test.go][]", "q": "[a_test.go][]"})
	if len(only) != 1 || only[0] != "p" {
		t.Fatalf("differing = %q, want p", only)
	}
	var out strings.Builder
	r := newReport(func(s string) { out.WriteString(s) })
	for _, tag := range []string{"", "edamodel"} {
		r.expect([]string{"p"}, tag)
		r.settle(r.read(strings.NewReader(good)), nil)
	}
	r.expect([]string{"p"}, "edafault")
	r.settle(nil, nil)
	if r.close() || !strings.Contains(out.String(), "ok   p [edamodel]  2 passed") || !strings.HasSuffix(out.String(), "refused: p [edafault]: the stream ended without its result\n4 passed, 1 failed\n") {
		t.Errorf("got\n%s", &out)
	}
}
