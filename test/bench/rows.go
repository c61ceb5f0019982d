package main

import (
	"cmp"
	"fmt"
)

// benchmark is a Go benchmark of this repository, and how often its loop runs. A new one adds a line here and rows below.
type benchmark struct {
	dir, name string
	n         int
}

var benchmarks = []benchmark{
	{"cgroup", "True", 300},
	{"cgroup", "Kill", 20},
	{"cgroup", "Notice", 100},
	{"cgroup", "Survivors", 3},
	{"cgroup", "Bomb", 20},
	{"cgroup", "Left", 200},
	{"test/bench", "CommitDurable", 300},
	{"test/bench", "Sessions", 20},
	{"test/bench", "Exchange", 200},
	{"test/bench", "Recover", 1},
	{"sidecar/ledger", "Commit", 1000},
	{"sidecar/ledger", "Verify", 5},
	{"sidecar/txn", "Plan", 10000},
	{"sidecar/lock", "Acquire", 10000},
	{"test/bench", "Run", 50},
	{"test/bench", "Call", 300},
	{"test/bench", "Jobs", 5},
	{"test/bench", "Cancel", 30},
	{"test/bench", "Load", 1},
}

// row is one line of a table: a mode that was timed, with its percentiles, or one number.
type row struct {
	table, what string
	bench       string // name of the benchmark, with its sub-benchmark
	mode        string // timed: the metrics MODE-p10-us, MODE-p50-us and MODE-p99-us
	metric      string // or the one metric
	base        string // mode or metric that the ratio is to; empty: none
	bounds      []bound
}

// bound is what a number of a row must hold. Durations are in microseconds.
type bound struct {
	of    string // p50, p99, ratio, value, or over: p50 above that of base
	least bool   // it is the least; else the most
	limit float64
}

func atMost(of string, limit float64) bound  { return bound{of, false, limit} }
func atLeast(of string, limit float64) bound { return bound{of, true, limit} }

func (b bound) String() string {
	limit := number(b.limit)
	switch b.of {
	case "ratio":
		limit += "x"
	case "value":
	default:
		limit = duration(b.limit)
	}
	return b.of + map[bool]string{true: " >= ", false: " <= "}[b.least] + limit
}

const ms = 1e3 // microseconds

// tables are those of the document, in its order.
var tables = []string{"containment", "transaction", "process", "server"}

var rows = []row{
	{"containment", "`/bin/true`: create, start by clone3, reap, kill, prove, rmdir", "True", "clone3", "", "exec", []bound{atMost("ratio", 1.3)}},
	{"containment", "the same, NNP, no capabilities, Landlock", "True", "sandbox", "", "exec", []bound{atMost("ratio", 1.5)}},
	{"containment", "the same through the shim", "True", "shim", "", "exec", []bound{atMost("ratio", 4)}},
	{"containment", "- `exec.Command().Run()`", "True", "exec", "", "", nil},
	{"containment", "- `bwrap`, to the line with Landlock", "True", "bwrap", "", "sandbox", []bound{atLeast("ratio", 1)}},
	{"containment", "- `crun`, to the line with Landlock", "True", "crun", "", "sandbox", []bound{atLeast("ratio", 1)}},
	{"containment", "- `runc`, to the line with Landlock", "True", "runc", "", "sandbox", []bound{atLeast("ratio", 1)}},
	{"containment", "kill 10 processes to proof", "Kill/10", "ours", "", "killpg", []bound{atMost("p50", 2*ms), atMost("p99", 25*ms)}},
	{"containment", "- 10 by killpg", "Kill/10", "killpg", "", "", nil},
	{"containment", "- 10 by freeze and list", "Kill/10", "freeze", "", "killpg", nil},
	{"containment", "- 10 by a walk of /proc", "Kill/10", "walk", "", "killpg", nil},
	{"containment", "kill 1000 processes to proof", "Kill/1000", "ours", "", "killpg", []bound{atMost("p50", 100*ms)}},
	{"containment", "- 1000 by killpg", "Kill/1000", "killpg", "", "", nil},
	{"containment", "- 1000 by freeze and list", "Kill/1000", "freeze", "", "killpg", nil},
	{"containment", "- 1000 by a walk of /proc", "Kill/1000", "walk", "", "killpg", nil},
	{"containment", "emptiness noticed after the leader's exit", "Notice", "leader", "", "pollpri-leader", []bound{atMost("p50", 0.3*ms)}},
	{"containment", "- by POLLPRI alone", "Notice", "pollpri-leader", "", "", nil},
	{"containment", "emptiness noticed after an orphan's exit", "Notice", "orphan", "", "pollpri-orphan", []bound{atMost("p50", 1.5*ms)}},
	{"containment", "- of an orphan by POLLPRI alone", "Notice", "pollpri-orphan", "", "", nil},
	{"containment", "survivors of 10 daemons", "Survivors/10", "", "ours-alive", "", []bound{atMost("value", 0)}},
	{"containment", "- of 10 after killpg", "Survivors/10", "", "killpg-alive", "", nil},
	{"containment", "survivors of 100 daemons", "Survivors/100", "", "ours-alive", "", []bound{atMost("value", 0)}},
	{"containment", "- of 100 after killpg", "Survivors/100", "", "killpg-alive", "", nil},
	{"containment", "survivors of 1000 daemons", "Survivors/1000", "", "ours-alive", "", []bound{atMost("value", 0)}},
	{"containment", "- of 1000 after killpg", "Survivors/1000", "", "killpg-alive", "", nil},
	{"containment", "fork bomb of 300, kill to proof", "Bomb", "ours", "", "", []bound{atMost("p50", 150*ms)}},
	{"containment", "survivors of the fork bomb", "Bomb", "", "ours-alive", "", []bound{atMost("value", 0)}},
	{"containment", "- of the fork bomb after killpg", "Bomb", "", "killpg-alive", "", nil},
	{"containment", "threads more after 200 jobs (the runtime keeps some)", "Left", "", "threads", "", []bound{atMost("value", 12)}},
	{"containment", "descriptors more after 200 jobs", "Left", "", "fds", "", []bound{atMost("value", 0)}},
	{"containment", "zombies more after 200 jobs", "Left", "", "zombies", "", []bound{atMost("value", 0)}},
	{"containment", "groups more after 200 jobs", "Left", "", "groups", "", []bound{atMost("value", 0)}},

	{"transaction", "1 output of 4 KiB, from the proof to the acknowledged commit", "CommitDurable/1", "product", "", "floor", []bound{atMost("ratio", 1.6)}},
	{"transaction", "- Floor(1,1,1)", "CommitDurable/1", "floor", "", "", nil},
	{"transaction", "syncs of it: N + D + 5", "CommitDurable/1", "", "syncs", "", []bound{atMost("value", 7)}},
	{"transaction", "10 outputs of 4 KiB, the same", "CommitDurable/10", "product", "", "floor", []bound{atMost("ratio", 2)}},
	{"transaction", "- Floor(10,1,1)", "CommitDurable/10", "floor", "", "", nil},
	{"transaction", "syncs of them: N + D + 5", "CommitDurable/10", "", "syncs", "", []bound{atMost("value", 16)}},
	{"transaction", "calls a second, 8 sessions, 1 output, no process", "Sessions", "", "product-per-s", "floor-per-s", []bound{atLeast("ratio", 0.55)}},
	{"transaction", "- Floor(1,1,8)", "Sessions", "", "floor-per-s", "", nil},
	{"transaction", "operations a COMMIT of these calls", "Sessions", "", "ops-per-COMMIT", "", []bound{atLeast("value", 1.01)}},
	{"transaction", "exchange of a big output, synced", "Exchange", "big", "", "small", []bound{atMost("ratio", 2)}},
	{"transaction", "- of 4 KiB", "Exchange", "small", "", "", nil},
	{"transaction", "MiB of the big output", "Exchange", "", "MiB", "", nil},
	{"transaction", "reads and writes of its data", "Exchange", "", "data-ops", "", []bound{atMost("value", 0)}},
	{"transaction", "recovery of 1000 jobs in publishing_outputs, us a job", "Recover", "", "product-us", "floor-us", []bound{atMost("ratio", 3)}},
	{"transaction", "- exchange and two parallel directory fsyncs, us a job", "Recover", "", "floor-us", "", nil},
	{"transaction", "ledger transactions of a recovery of 100 jobs", "Recover", "", "transactions", "", []bound{atMost("value", 2)}},
	{"transaction", "MiB of memory more for 1000 jobs", "Recover", "", "MiB-more", "", []bound{atMost("value", 8)}},
	{"transaction", "one commit transaction", "Commit", "commit", "", "append", nil},
	{"transaction", "- append of 512 bytes and fsync", "Commit", "append", "", "", nil},
	{"transaction", "events a second, verified", "Verify", "", "events/s", "", []bound{atLeast("value", 40000)}},
	{"transaction", "KiB kept by a verification of 10,000 events", "Verify", "", "KiB-kept", "", []bound{atMost("value", 1024)}},
	{"transaction", "Plan of 10 outputs, ns", "Plan", "", "ns/op", "", []bound{atMost("value", 20000)}},
	{"transaction", "Acquire of 10 free keys, ns", "Acquire", "", "ns/op", "", []bound{atMost("value", 5000)}},

	{"process", "`eda-sidecar run -- true` on a used workspace", "Run", "run", "", "true", []bound{atMost("over", 60*ms)}},
	{"process", "- `true`", "Run", "true", "", "", nil},
	{"process", "- `eda-sidecar version`", "Run", "version", "", "true", nil},
	{"process", "- `eda-sidecar recover`: all but the job", "Run", "recover", "", "true", nil},
	{"process", "under strace: process start, open, owner lock", "Run", "part-start", "", "", nil},
	{"process", "under strace: probe of the volume", "Run", "part-probe", "", "", nil},
	{"process", "under strace: ledger open, discovery of the cgroup", "Run", "part-ledger", "", "", nil},
	{"process", "under strace: containment self-test", "Run", "part-selftest", "", "", nil},
	{"process", "under strace: recovery", "Run", "part-recovery", "", "", nil},
	{"process", "under strace: job", "Run", "part-job", "", "", nil},
	{"process", "under strace: close", "Run", "part-close", "", "", nil},

	{"server", "`session_show` over HTTP, revision 2026-07-28", "Call", "show-A", "", "noop-A", []bound{atMost("ratio", 1.3)}},
	{"server", "- tool that does nothing on a bare server of the SDK, the same", "Call", "noop-A", "", "", nil},
	{"server", "`session_show` over HTTP, revision 2025-11-25", "Call", "show-B", "", "noop-B", []bound{atMost("ratio", 1.3)}},
	{"server", "- tool that does nothing on a bare server of the SDK, that one", "Call", "noop-B", "", "", nil},
	{"server", "read that starts `/bin/echo`", "Call", "read", "", "allowed", []bound{atMost("ratio", 1)}},
	{"server", "- `session_show` + 5 ms + 1.5 x `exec.Command().Run()`", "Call", "allowed", "", "", nil},
	{"server", "jobs a second that publish 4 KiB, 1 session", "Jobs", "", "jobs-1-per-s", "floor-1-per-s", nil},
	{"server", "- the script, fsync, rename, fsync: 1 at once", "Jobs", "", "floor-1-per-s", "", nil},
	{"server", "8 sessions, to 1 session", "Jobs", "", "jobs-8-per-s", "jobs-1-per-s", []bound{atLeast("ratio", 1)}},
	{"server", "- the script, fsync, rename, fsync: 8 at once, to 1", "Jobs", "", "floor-8-per-s", "floor-1-per-s", nil},
	{"server", "64 sessions, to 1 session", "Jobs", "", "jobs-64-per-s", "jobs-1-per-s", []bound{atLeast("ratio", 1)}},
	{"server", "- the script, fsync, rename, fsync: 64 at once, to 1", "Jobs", "", "floor-64-per-s", "floor-1-per-s", nil},
	{"server", "cancel of 10 deaf processes to the answer, beyond the kill", "Cancel", "beyond", "", "", []bound{atMost("p50", 200*ms)}},
	{"server", "- of them, from the kill to the proof", "Cancel", "kill", "", "", nil},
	{"server", "MiB resident, idle", "Load", "", "idle-MiB", "", []bound{atMost("value", 40)}},
	{"server", "MiB resident, 64 jobs", "Load", "", "jobs-MiB", "", []bound{atMost("value", 96)}},
	{"server", "MiB resident, 64 jobs and 200 `job_wait`", "Load", "", "waits-MiB", "", []bound{atMost("value", 96)}},
	{"server", "KiB a `job_wait`", "Load", "", "KiB-a-wait", "", []bound{atMost("value", 128)}},
	{"server", "ping beside 200 `job_wait`", "Load", "ping", "", "alone", []bound{atMost("p99", 50*ms)}},
	{"server", "- ping beside 64 jobs alone", "Load", "alone", "", "", nil},
}

// metrics are the numbers of a run, by benchmark and unit.
type metrics map[string]map[string]float64

const (
	passed = "pass"
	missed = "MISS"
	absent = "absent or refused here"
)

// render is r as a line of its table; bad: it breaks a bound, or was not measured.
func (r row) render(all metrics) (line string, bad bool) {
	m := all[r.bench]
	cells := []string{"", "", ""}
	got := map[string]float64{}
	units := map[string]string{"p10": r.mode + "-p10-us", "p50": r.mode + "-p50-us", "p99": r.mode + "-p99-us"}
	base := r.base + "-p50-us"
	if r.metric != "" {
		units, base = map[string]string{"value": r.metric}, r.base
	}
	for of, unit := range units {
		v, ok := m[unit]
		if !ok {
			return fmt.Sprintf("| %s | | %s | | | %s | |\n", r.what, absent, r.bound()), len(r.bounds) > 0 && r.base != "sandbox"
		}
		got[of] = v
	}
	for i, of := range []string{"p10", "p50", "p99"} {
		if r.metric == "" {
			cells[i] = duration(got[of])
		}
	}
	ratio := ""
	if r.metric != "" {
		cells[1] = number(got["value"])
	}
	if r.base != "" {
		mine := cmp.Or(got["p50"], got["value"])
		got["ratio"], got["over"] = mine/m[base], mine-m[base]
		ratio = number(got["ratio"]) + "x"
	}
	verdict := ""
	for _, b := range r.bounds {
		if verdict = cmp.Or(verdict, passed); b.least && !(got[b.of] >= b.limit) || !b.least && !(got[b.of] <= b.limit) { // NaN fails
			verdict, bad = missed, true
		}
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n", r.what, cells[0], cells[1], cells[2], ratio, r.bound(), verdict), bad
}

func (r row) bound() (text string) {
	for _, b := range r.bounds {
		if text != "" {
			text += ", "
		}
		text += b.String()
	}
	return text
}

// number has three digits, or all before the point.
func number(v float64) string {
	if v >= 100 || v <= -100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// duration is us microseconds for a reader.
func duration(us float64) string {
	if us < ms {
		return number(us) + " us"
	}
	return number(us/ms) + " ms"
}
