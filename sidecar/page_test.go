package sidecar

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/metrics"
)

// far says to which parts of its way a call came.
type far int

const (
	atKeys    far = 1 << iota // the wait for its keys
	atKill                    // of its groups
	atPublish                 // of its outputs, or the attempt
	atCommit                  // as above
)

// answer is what a caller was told of one call.
type answer struct {
	job.Result
	far  far
	took time.Duration // as the caller saw it
	err  error         // there was none
}

// between are the values that a series may have: one, where the test knows it.
type between struct{ lo, hi float64 }

func is(v float64) between { return between{v, v} }

func (b between) plus(c between) between { return between{b.lo + c.lo, b.hi + c.hi} }

// closed are the metrics that are no histograms, each with its labels in the order in which they are printed.
var closed = map[string][]string{
	"commits_total": {"tool"}, "timeouts_total": {"tool"}, "cancellations_total": {"tool"}, "rollbacks_total": {"reason", "tool"},
	"jobs_finished_total": {"outcome", "tool"}, "job_cpu_seconds_total": {"tool"}, "recovered_jobs_total": {"proof", "resolution"},
	"descendants_killed_total": nil, "published_bytes_total": nil, "escapes_detected_total": nil, "jobs_running": nil, "jobs_queued": nil,
	"unproven_jobs": nil, "undecided_jobs": nil, "quarantined_jobs": nil, "ledger_poisoned": nil, "groups_leftover": nil,
	"group_removal_oldest_seconds": nil, "ready": {"check"},
}

const (
	longBounds  = "0.05 0.1 0.5 1 2 5 10 30 60 120 300 900 3600 14400"
	shortBounds = "0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10"
	waitBounds  = "0.001 0.01 0.1 1 5 10 30 60"
)

// parts are the histograms without labels.
var parts = []struct {
	name   string
	of     far
	bounds string
}{
	{"lock_wait_seconds", atKeys, waitBounds},
	{"kill_duration_seconds", atKill, shortBounds},
	{"publish_duration_seconds", atPublish, shortBounds},
	{"ledger_commit_seconds", atCommit, shortBounds},
}

// values are the closed sets of labels.
func values(tools []string) map[string][]string {
	var codes []string
	for _, c := range job.Codes() {
		codes = append(codes, strings.ToLower(string(c.Code)))
	}
	return map[string][]string{
		"tool": tools, "outcome": codes, "reason": codes[1:], "check": {"agent", "containment", "recovery", "ledger", "workspace", "serving"},
		"resolution": {"discarded", "rolled_back", "rolled_forward", "conflict", "quarantined", "unknown"},
		"proof":      {"read", "removed", "gone", "reboot", "confined", "earlier", "unknown"},
	}
}

// series is the name of a series with its labels, as it is printed. pairs are name and value, by name.
func series(name string, pairs ...string) string {
	var labels []string
	for pair := range slices.Chunk(pairs, 2) {
		labels = append(labels, pair[0]+`="`+pair[1]+`"`)
	}
	if len(labels) == 0 {
		return name
	}
	return name + "{" + strings.Join(labels, ",") + "}"
}

// observe adds what a histogram must be of these observations. pairs are its own labels; le is printed last.
func observe(page map[string]between, name, bounds string, seen []between, pairs ...string) {
	sum := between{-1e-6, 1e-6} // rounding
	for _, s := range seen {
		sum = sum.plus(s)
	}
	page[series(name+"_sum", pairs...)], page[series(name+"_count", pairs...)] = sum, is(float64(len(seen)))
	for _, bound := range append(strings.Fields(bounds), "+Inf") {
		le, err := strconv.ParseFloat(bound, 64)
		if err != nil {
			panic(err) // of a constant
		}
		var n between
		for _, s := range seen {
			if s.hi <= le {
				n.lo++
			}
			if s.lo <= le {
				n.hi++
			}
		}
		page[series(name+"_bucket", append(slices.Clone(pairs), "le", bound)...)] = n
	}
}

// expected is the whole page: every series at 0, then the trail of this process counted, then the answers, then what is
// now, which the caller knows.
func (w *walk) expected(now map[string]float64) map[string]between {
	w.t.Helper()
	sets := values(w.tools)
	page := map[string]between{}
	var each func(name string, labels, pairs []string)
	each = func(name string, labels, pairs []string) {
		if len(labels) == 0 {
			page[series(name, pairs...)] = is(0)
			return
		}
		for _, v := range sets[labels[0]] {
			each(name, labels[1:], append(slices.Clone(pairs), labels[0], v))
		}
	}
	for name, labels := range closed {
		each(name, labels, nil)
	}
	add := func(v float64, name string, pairs ...string) {
		page[series(name, pairs...)] = page[series(name, pairs...)].plus(is(v))
	}
	for _, e := range w.trail() {
		w.count(e, add)
	}
	durations := map[string][]between{}
	steps := make([][]between, len(parts))
	for _, a := range w.answers {
		tool := w.label(a.Tool)
		add(1, "jobs_finished_total", "outcome", strings.ToLower(string(a.Code)), "tool", tool)
		took := is(float64(a.Duration) / 1000)
		if tool == job.SessionTool { // whose answers do not say how long the ledger took
			took = between{0, a.took.Seconds()}
		}
		durations[tool] = append(durations[tool], took)
		for i, part := range parts {
			if a.far&part.of != 0 {
				steps[i] = append(steps[i], between{0, float64(a.Duration+1) / 1000}) // in whole milliseconds
			}
		}
		if a.Usage.CPUSeconds != nil {
			add(*a.Usage.CPUSeconds, "job_cpu_seconds_total", "tool", tool)
		}
		add(float64(a.DescendantsKilled), "descendants_killed_total")
		for _, o := range a.Outputs {
			add(float64(o.Bytes), "published_bytes_total")
		}
	}
	for _, tool := range w.tools {
		observe(page, "job_duration_seconds", longBounds, durations[tool], "tool", tool)
	}
	for i, part := range parts {
		observe(page, part.name, part.bounds, steps[i])
	}
	for _, check := range sets["check"] {
		page[series("ready", "check", check)] = is(1)
	}
	for name, v := range now {
		page[name] = is(v)
	}
	c := w.engine().groups.Capabilities()
	page[series("containment_info", "cgroup", string(c.Kind), "entry", string(c.Entry), "landlock_abi", strconv.Itoa(c.LandlockABI), "limits", "best-effort", "uid", strconv.Itoa(c.UID))] = is(1)
	page[series("build_info", "goversion", runtime.Version(), "revision", "abc", "version", "v1")] = is(1)
	return page
}

// count counts an event as the trail's reader would.
func (w *walk) count(e audit.Entry, add func(v float64, name string, pairs ...string)) {
	tool, text := w.label(e.Tool), func(key string) string { return strings.ToLower(fmt.Sprint(e.Data[key])) }
	switch e.Kind {
	case audit.Commit:
		add(1, "commits_total", "tool", tool)
	case audit.Timeout:
		add(1, "timeouts_total", "tool", tool)
	case audit.Cancel:
		add(1, "cancellations_total", "tool", tool)
	case audit.Rollback:
		add(1, "rollbacks_total", "reason", text("code"), "tool", tool)
	case audit.Recovered:
		add(1, "recovered_jobs_total", "proof", text("proof"), "resolution", text("resolution"))
	case audit.Allow, audit.Deny, audit.Start, audit.Finish, audit.Error, audit.WorkerTerminated, audit.TerminationUnproven,
		audit.LedgerOpened, audit.LedgerRestored, audit.LedgerPruned, audit.LedgerClosed: // of these answers or nobody count
	}
}

// label is how a tool is counted.
func (w *walk) label(tool string) string {
	if slices.Contains(w.tools, tool) {
		return tool
	}
	return "other"
}

// parse reads our series of an exposition, and those that are nobody's.
func parse(text string) (ours map[string]float64, strange []string) {
	ours = map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		name, found := strings.CutPrefix(line, "eda_sidecar_")
		at := strings.LastIndexByte(name, ' ')
		v, err := strconv.ParseFloat(name[at+1:], 64)
		switch {
		case strings.HasPrefix(line, "#"), strings.HasPrefix(line, "go_"), strings.HasPrefix(line, "process_"), strings.HasPrefix(line, "promhttp_"):
		case !found, err != nil:
			strange = append(strange, line)
		default:
			ours[name[:at]] = v
		}
	}
	return ours, strange
}

// differ says in what a page is not as expected.
func differ(text string, want map[string]between) (findings []string) {
	got, findings := parse(text)
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if w, known := want[name]; !known {
			findings = append(findings, "nobody knows "+name)
		} else if v := got[name]; v < w.lo-1e-6 || v > w.hi+1e-6 {
			findings = append(findings, fmt.Sprintf("%s is %v, want %v", name, v, w))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if _, there := got[name]; !there {
			findings = append(findings, "there is no "+name)
		}
	}
	return findings
}

// trail are the events of jobs of this process, as any reader of the ledger finds them.
func (w *walk) trail() (all []audit.Entry) {
	w.t.Helper()
	r, err := ledger.OpenReader(w.cfg.StateDir)
	ok(w.t, err)
	defer func() { _ = r.Close() }() // opened for reading
	ok(w.t, r.Events(context.Background(), ledger.Query{}, func(rec ledger.Record) error {
		e, err := audit.Decode(rec.Body)
		if e.Kind == audit.LedgerOpened {
			all = nil
		} else if !e.Kind.Housekeeping() {
			all = append(all, e)
		}
		return err
	}))
	return all
}

// rest waits until what rides is durable, and until the groups that are done are gone.
func (w *walk) rest() {
	w.t.Helper()
	if w.engine().Ledger.Poisoned() == nil {
		ok(w.t, durably(w.engine().Ledger.SetAgent("none")))
	}
	until(w.t, "removed groups", func() bool { n := w.engine().groups.Stats(); return n.Removing == 0 && n.Unproven == 0 })
}

// page compares the whole page with the trail, the answers and what is now, and returns what does not agree.
func (w *walk) page(now map[string]float64) []string {
	w.t.Helper()
	w.rest()
	_, text := w.get("/metrics")
	return append(differ(text, w.expected(now)), w.balance(text)...)
}

// agrees wants nothing else on the page.
func (w *walk) agrees(when string, now map[string]float64) {
	w.t.Helper()
	for _, finding := range w.page(now) {
		w.t.Errorf("%s: %s", when, finding)
	}
}

// ends are the calls of this process, and what it recovered, by how they ended, as their events say.
func (w *walk) ends() map[string]float64 {
	kinds, n := map[string][]audit.Kind{}, map[string]float64{}
	for _, a := range w.answers {
		if a.Job != "" {
			kinds[a.Job] = []audit.Kind{} // a refusal that a poisoned ledger did not take has no event
		} else if a.Code != job.OK {
			n["refused"]++ // an operation on a session, which has an id in its events alone
		}
	}
	for _, e := range w.trail() {
		if kinds[e.Job] != nil || e.Tool == job.SessionTool || e.Kind == audit.Recovered {
			kinds[e.Job] = append(kinds[e.Job], e.Kind)
		}
	}
	for _, k := range kinds {
		has := func(kind audit.Kind) bool { return slices.Contains(k, kind) }
		switch {
		case has(audit.Recovered) && has(audit.Rollback):
			n["recovered"]++
		case has(audit.Recovered): // of a read, or after a commit
		case has(audit.Commit):
			n["committed"]++
		case has(audit.Rollback):
			n["rolled back"]++
		case has(audit.TerminationUnproven):
			n["unproven"]++
		case len(k) == 0, has(audit.Deny):
			n["refused"]++
		case k[len(k)-1] == audit.Start:
			n["in doubt"]++
		default:
			n["read"]++
		}
	}
	return n
}

// balance is the sum of docs/metrics.md: every call that was answered has ended in one way, whoever counted it.
func (w *walk) balance(text string) (findings []string) {
	page, _ := parse(text)
	total := func(name string) (sum float64) {
		for series, v := range page {
			if series == name || strings.HasPrefix(series, name+"{") {
				sum += v
			}
		}
		return sum
	}
	n := w.ends()
	for _, sum := range []struct {
		name        string
		left, right float64
	}{
		{"jobs_finished_total", total("jobs_finished_total"), total("commits_total") + total("rollbacks_total") - n["recovered"] + n["read"] + n["refused"] + n["unproven"] + n["in doubt"]},
		{"unproven_jobs", total("unproven_jobs"), n["unproven"]},
		{"undecided_jobs", total("undecided_jobs"), n["in doubt"]},
	} {
		if sum.left != sum.right {
			findings = append(findings, fmt.Sprintf("%s is %v, the trail says %v: %v", sum.name, sum.left, sum.right, n))
		}
	}
	return findings
}

// dropped replays all that was heard but one thing into another sink, and returns what was not missed.
func (w *walk) dropped(now map[string]float64) (findings []string) {
	w.t.Helper()
	want := w.expected(now)
	w.mu.Lock()
	all := slices.Clone(w.heard)
	w.mu.Unlock()
	for leave := -1; leave < len(all); leave++ {
		sink := metrics.New(metrics.Options{Version: "v1", Revision: "abc", Tools: w.tools[:len(w.tools)-3], Gauges: w.s.gauges()})
		what := "nothing"
		for i, h := range all {
			if i == leave {
				what = h.what
				continue
			}
			h.tell(sink)
		}
		rec := httptest.NewRecorder()
		sink.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if missed := differ(rec.Body.String(), want); (len(missed) == 0) != (leave < 0) {
			findings = append(findings, fmt.Sprintf("%s was dropped: %q", what, missed))
		}
	}
	return findings
}
