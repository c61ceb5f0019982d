package metrics

import (
	"fmt"
	"maps"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

var _ job.Metrics = (*Sink)(nil)

// idle are the gauges of an engine that does nothing and has no trouble.
func idle() Gauges {
	none := func() int { return 0 }
	return Gauges{
		Running: none, Queued: none, Unproven: none, Undecided: none, Quarantined: none, Leftover: none,
		Poisoned: func() bool { return false }, OldestRemoval: func() time.Duration { return 0 }, Escapes: func() int64 { return 0 },
		Ready:       func() []Check { return []Check{{Name: "containment"}, {Name: "ledger"}} },
		Containment: func() map[string]string { return nil },
	}
}

func sink() *Sink { return New(Options{Tools: []string{"yosys_synth", "icarus_sim"}, Gauges: idle()}) }

// page is what a scrape gets.
func page(t testing.TB, s *Sink) string {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// series are the values of our series in an exposition, by name without the prefix and labels as they are printed.
func series(t testing.TB, text string) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		if line, ours := strings.CutPrefix(strings.TrimSpace(line), "eda_sidecar_"); ours {
			at := strings.LastIndexByte(line, ' ')
			v, err := strconv.ParseFloat(line[at+1:], 64)
			if err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			all[line[:at]] = v
		}
	}
	return all
}

// compare returns how the exposition of s differs from that of a new sink in which the series in want have the values
// given there, of all our metrics.
func compare(t testing.TB, s *Sink, want map[string]float64) error {
	t.Helper()
	text := page(t, sink())
	for name, v := range want {
		begin := "\neda_sidecar_" + name + " "
		head, rest, found := strings.Cut(text, begin)
		if !found {
			return fmt.Errorf("there is no series %s", name)
		}
		_, tail, _ := strings.Cut(rest, "\n")
		text = head + begin + strconv.FormatFloat(v, 'g', -1, 64) + "\n" + tail
	}
	var names []string
	for _, m := range table {
		names = append(names, "eda_sidecar_"+m.name)
	}
	return testutil.GatherAndCompare(s.registry, strings.NewReader(text), names...)
}

// Upper bounds of the histograms, as they are printed.
const (
	short60    = "0.001 0.01 0.1 1 5 10 30 60"
	shortest10 = "0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10"
	duration   = "0.05 0.1 0.5 1 2 5 10 30 60 120 300 900 3600 14400"
)

// observed are the series of a histogram that has seen v once. labels are empty or end with a comma.
func observed(name, labels, bounds string, v float64) map[string]float64 {
	outer := ""
	if labels != "" {
		outer = "{" + strings.TrimSuffix(labels, ",") + "}"
	}
	all := map[string]float64{name + "_count" + outer: 1, name + "_sum" + outer: v, name + "_bucket{" + labels + `le="+Inf"}`: 1}
	for bound := range strings.FieldsSeq(bounds) {
		if le, err := strconv.ParseFloat(bound, 64); err == nil && v <= le {
			all[name+"_bucket{"+labels+`le="`+bound+`"}`] = 1
		} else if err == nil {
			all[name+"_bucket{"+labels+`le="`+bound+`"}`] = 0
		}
	}
	return all
}

func merged(all ...map[string]float64) map[string]float64 {
	sum := map[string]float64{}
	for _, m := range all {
		maps.Copy(sum, m)
	}
	return sum
}

// answered are the series that every answer moves.
func answered(tool, outcome string, seconds float64) map[string]float64 {
	return merged(observed("job_duration_seconds", `tool="`+tool+`",`, duration, seconds), map[string]float64{
		fmt.Sprintf("jobs_finished_total{outcome=%q,tool=%q}", outcome, tool): 1,
	})
}

// TestStart wants every series on the first page, with its first value, and no other.
func TestStart(t *testing.T) {
	const tools, codes = 5, 23 // yosys_synth icarus_sim session run other
	want := map[string]int{
		"commits_total": tools, "timeouts_total": tools, "cancellations_total": tools, "rollbacks_total": tools * (codes - 1),
		"jobs_finished_total":         tools * codes,
		"job_duration_seconds_bucket": tools * 15, "job_duration_seconds_sum": tools, "job_duration_seconds_count": tools,
		"kill_duration_seconds_bucket": 14, "kill_duration_seconds_sum": 1, "kill_duration_seconds_count": 1,
		"publish_duration_seconds_bucket": 14, "publish_duration_seconds_sum": 1, "publish_duration_seconds_count": 1,
		"ledger_commit_seconds_bucket": 14, "ledger_commit_seconds_sum": 1, "ledger_commit_seconds_count": 1,
		"lock_wait_seconds_bucket": 9, "lock_wait_seconds_sum": 1, "lock_wait_seconds_count": 1,
		"jobs_running": 1, "jobs_queued": 1, "unproven_jobs": 1, "undecided_jobs": 1, "quarantined_jobs": 1, "ledger_poisoned": 1,
		"groups_leftover": 1, "group_removal_oldest_seconds": 1,
		"recovered_jobs_total": 6 * 7, "job_cpu_seconds_total": tools,
		"descendants_killed_total": 1, "published_bytes_total": 1, "escapes_detected_total": 1,
		"ready": 2, "build_info": 1, "containment_info": 1,
	}
	text := page(t, sink())
	got := map[string]int{}
	for name, v := range series(t, text) {
		name, _, _ = strings.Cut(name, "{")
		got[name]++
		first := 0.0
		if strings.HasSuffix(name, "_info") {
			first = 1
		}
		if v != first {
			t.Errorf("%s starts at %v, want %v", name, v, first)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	for _, name := range []string{"\ngo_goroutines ", "\nprocess_cpu_seconds_total "} {
		if !strings.Contains(text, name) {
			t.Errorf("no %s", name)
		}
	}
}

func TestSize(t *testing.T) {
	var tools []string
	for i := range 40 {
		tools = append(tools, fmt.Sprintf("tool_%d", i))
	}
	g := idle()
	g.Ready = func() []Check {
		return []Check{{Name: "agent"}, {Name: "containment"}, {Name: "recovery"}, {Name: "ledger"}, {Name: "workspace"}, {Name: "serving"}}
	}
	text := page(t, New(Options{Tools: tools, Gauges: g}))
	if n := len(series(t, text)); n > 3000 {
		t.Errorf("%d series with 40 tools, limit 3000", n)
	} else {
		t.Logf("NOTE series with 40 tools: %d of ours, a page of %d KiB", n, len(text)>>10)
	}
}

func TestLint(t *testing.T) {
	problems, err := testutil.GatherAndLint(sink().registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestMoves tells a sink one thing and compares the whole of our metrics.
func TestMoves(t *testing.T) {
	cpu := 1.5
	ms := time.Millisecond
	for _, tt := range []struct {
		name   string
		event  audit.Event
		result job.Result // told if it has a code
		times  job.Times
		want   map[string]float64
	}{
		{name: "commit", event: audit.Event{Kind: audit.Commit, Tool: "yosys_synth"}, want: map[string]float64{`commits_total{tool="yosys_synth"}`: 1}},
		{name: "session", event: audit.Event{Kind: audit.Commit, Tool: job.SessionTool}, want: map[string]float64{`commits_total{tool="session"}`: 1}},
		{name: "run", event: audit.Event{Kind: audit.Timeout, Tool: "run"}, want: map[string]float64{`timeouts_total{tool="run"}`: 1}},
		{name: "tool_of_before", event: audit.Event{Kind: audit.Cancel, Tool: "unknown"}, want: map[string]float64{`cancellations_total{tool="other"}`: 1}},
		{
			name: "rollback", event: audit.Event{Kind: audit.Rollback, Tool: "icarus_sim", Data: map[string]any{"code": "TOOL_TIMEOUT", "reason": "late"}},
			want: map[string]float64{`rollbacks_total{reason="tool_timeout",tool="icarus_sim"}`: 1},
		},
		{
			name: "rollback_without_code", event: audit.Event{Kind: audit.Rollback, Tool: "icarus_sim"},
			want: map[string]float64{`rollbacks_total{reason="internal",tool="icarus_sim"}`: 1},
		},
		{
			name: "rollback_of_tomorrow", event: audit.Event{Kind: audit.Rollback, Tool: "icarus_sim", Data: map[string]any{"code": 7}},
			want: map[string]float64{`rollbacks_total{reason="internal",tool="icarus_sim"}`: 1},
		},
		{
			name: "recovered", event: audit.Event{Kind: audit.Recovered, Data: map[string]any{"resolution": "rolled_back", "proof": "reboot", "phase": "worker_running"}},
			want: map[string]float64{`recovered_jobs_total{proof="reboot",resolution="rolled_back"}`: 1},
		},
		{
			name: "recovered_without_proof", event: audit.Event{Kind: audit.Recovered, Data: map[string]any{"resolution": "quarantined", "proof": ""}},
			want: map[string]float64{`recovered_jobs_total{proof="unknown",resolution="quarantined"}`: 1},
		},
		{
			name: "recovered_of_tomorrow", event: audit.Event{Kind: audit.Recovered, Data: map[string]any{"resolution": "mended", "proof": "seen"}},
			want: map[string]float64{`recovered_jobs_total{proof="unknown",resolution="unknown"}`: 1},
		},
		{
			name: "committed", result: job.Result{
				Code: job.OK, Tool: "yosys_synth", Duration: 1500, DescendantsKilled: 2, Usage: cgroup.Usage{CPUSeconds: &cpu},
				Outputs: []job.Published{{Bytes: 40}, {Absent: true}, {Bytes: 2}},
			},
			times: job.Times{Queued: 2 * time.Second, Kill: 3 * ms, Publish: 30 * ms, Commit: 20 * time.Second},
			want: merged(answered("yosys_synth", "ok", 1.5),
				observed("lock_wait_seconds", "", short60, 2), observed("kill_duration_seconds", "", shortest10, .003),
				observed("publish_duration_seconds", "", shortest10, .03), observed("ledger_commit_seconds", "", shortest10, 20),
				map[string]float64{`job_cpu_seconds_total{tool="yosys_synth"}`: 1.5, "descendants_killed_total": 2, "published_bytes_total": 42}),
		},
		{
			name: "read", result: job.Result{Code: job.OK, Tool: "run", Duration: 50}, times: job.Times{Kill: 10 * ms},
			want: merged(answered("run", "ok", .05), observed("kill_duration_seconds", "", shortest10, .01)),
		},
		{name: "refused", result: job.Result{Code: job.Busy, Tool: "icarus_sim"}, want: answered("icarus_sim", "busy", 0)},
		{name: "code_of_tomorrow", result: job.Result{Code: "ODD", Tool: "odd", Duration: 20_000_000}, want: answered("other", "internal", 20_000)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := sink()
			if tt.result.Code != "" {
				s.Finished(tt.result, tt.times)
			} else {
				s.Event(tt.event)
			}
			if err := compare(t, s, tt.want); err != nil {
				t.Error(err)
			}
			for name, v := range tt.want { // control
				off := maps.Clone(tt.want)
				off[name] = v + 1
				if compare(t, s, off) == nil {
					t.Errorf("control: %s may be %v and %v", name, v, v+1)
				}
				break
			}
		})
	}
}

// TestCompareControls wants compare to notice what is off, too much and too little.
func TestCompareControls(t *testing.T) {
	s := sink()
	s.Event(audit.Event{Kind: audit.Commit, Tool: "run"})
	for name, want := range map[string]map[string]float64{
		"off_by_one":   {`commits_total{tool="run"}`: 2},
		"too_little":   {},
		"too_much":     {`commits_total{tool="run"}`: 1, `timeouts_total{tool="run"}`: 1},
		"other_series": {`commits_total{tool="other"}`: 1},
		"no_series":    {`commits_total{tool="run"}`: 1, `commits_total{tool="absent"}`: 1},
	} {
		if compare(t, s, want) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestKinds wants an event of any other kind to move nothing.
func TestKinds(t *testing.T) {
	moves := map[string]string{
		"commit": `commits_total{tool="run"}`, "timeout": `timeouts_total{tool="run"}`, "cancel": `cancellations_total{tool="run"}`,
		"rollback": `rollbacks_total{reason="cancelled",tool="run"}`, "recovered": `recovered_jobs_total{proof="gone",resolution="conflict"}`,
	}
	for _, k := range audit.Kinds() {
		s, want := sink(), map[string]float64{}
		if name := moves[string(k)]; name != "" {
			want[name] = 1
		}
		s.Event(audit.Event{Kind: k, Tool: "run", Data: map[string]any{"code": "CANCELLED", "resolution": "conflict", "proof": "gone"}})
		if err := compare(t, s, want); err != nil {
			t.Errorf("%s: %v", k, err)
		}
	}
}

// TestCodes wants each code to be an outcome, and each but OK a reason.
func TestCodes(t *testing.T) {
	for _, c := range job.Codes() {
		s, code := sink(), strings.ToLower(string(c.Code))
		s.Finished(job.Result{Code: c.Code, Tool: "run"}, job.Times{})
		s.Event(audit.Event{Kind: audit.Rollback, Tool: "run", Data: map[string]any{"code": string(c.Code)}})
		reason := code
		if c.Code == job.OK {
			reason = "internal"
		}
		if err := compare(t, s, merged(answered("run", code, 0), map[string]float64{`rollbacks_total{reason="` + reason + `",tool="run"}`: 1})); err != nil {
			t.Errorf("%s: %v", c.Code, err)
		}
	}
}

// TestGauges reads each function into its own metric, at each scrape anew.
func TestGauges(t *testing.T) {
	n := func(i int) func() int { return func() int { return i } }
	s := New(Options{Version: "v1", Revision: "abc", Tools: []string{"yosys_synth", "icarus_sim"}, Gauges: Gauges{
		Running: n(1), Queued: n(2), Unproven: n(3), Undecided: n(4), Quarantined: n(5), Leftover: n(6),
		Poisoned: func() bool { return true }, OldestRemoval: func() time.Duration { return 1500 * time.Millisecond }, Escapes: func() int64 { return 8 },
		Ready: func() []Check { return []Check{{Name: "agent", OK: true}, {Name: "serving", Reason: "draining"}} },
		Containment: func() map[string]string {
			return map[string]string{"cgroup": "v2\xff", "entry": "clone3", "landlock_abi": "7", "uid": "10001", "more": "not shown"}
		},
	}})
	want := map[string]float64{
		"jobs_running": 1, "jobs_queued": 2, "unproven_jobs": 3, "undecided_jobs": 4, "quarantined_jobs": 5, "groups_leftover": 6,
		"ledger_poisoned": 1, "group_removal_oldest_seconds": 1.5, "escapes_detected_total": 8,
		`ready{check="agent"}`: 1, `ready{check="serving"}`: 0,
		`containment_info{cgroup="v2?",entry="clone3",landlock_abi="7",limits="",uid="10001"}`: 1,
	}
	got := series(t, page(t, s))
	for name, v := range want {
		if at, there := got[name]; !there || at != v {
			t.Errorf("%s is %v (%t), want %v", name, at, there, v)
		}
	}
	if !strings.Contains(page(t, s), `eda_sidecar_build_info{goversion="go1`) || !strings.Contains(page(t, s), `revision="abc",version="v1"} 1`) {
		t.Error("no build_info")
	}
}

// TestConcurrent moves everything from many goroutines while it is scraped.
func TestConcurrent(t *testing.T) {
	s := sink()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				s.Event(audit.Event{Kind: audit.Commit, Tool: "run"})
				s.Finished(job.Result{Code: job.OK, Tool: "run", DescendantsKilled: 1}, job.Times{})
			}
			page(t, s)
		})
	}
	wg.Wait()
	want := answered("run", "ok", 0)
	for name := range want {
		if want[name] != 0 {
			want[name] = 800
		}
	}
	want[`commits_total{tool="run"}`], want["descendants_killed_total"] = 800, 800
	if err := compare(t, s, want); err != nil {
		t.Error(err)
	}
}

func BenchmarkEvent(b *testing.B) {
	s, e := sink(), audit.Event{Kind: audit.Rollback, Tool: "run", Data: map[string]any{"code": "TOOL_TIMEOUT"}}
	for b.Loop() {
		s.Event(e)
	}
}

func BenchmarkFinished(b *testing.B) {
	s, r := sink(), job.Result{Code: job.OK, Tool: "run"}
	for b.Loop() {
		s.Finished(r, job.Times{Kill: time.Millisecond})
	}
}
