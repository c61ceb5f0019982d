package metrics

import (
	"runtime"
	"strings"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// metric is one row of the table: a name, without the prefix, and the one thing that moves it.
type metric struct {
	name, help string
	labels     []string  // keys of labelValues, unless the row is read
	buckets    []float64 // in seconds: the row is a histogram

	// exactly one is set
	event    audit.Kind                                         // each durable event of this kind adds 1
	finished func(job.Result, job.Times) (by float64, was bool) // each answer to a call
	read     func(o Options, to emit)                           // each scrape
}

// emit gives one series of a row that is read.
type emit func(v float64, values ...string)

var (
	tool       = []string{"tool"}
	short      = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	containers = []string{"cgroup", "entry", "landlock_abi", "uid", "limits"}
)

// table is every metric of ours, in the order of docs/metrics.md.
var table = []metric{
	{
		name: "commits_total", labels: tool, event: audit.Commit,
		help: "Jobs whose outputs and session state were published, and sessions created or destroyed (tool session): durable audit events commit.",
	},
	{
		name: "timeouts_total", labels: tool, event: audit.Timeout,
		help: "Jobs stopped because their time was over: durable audit events timeout.",
	},
	{
		name: "cancellations_total", labels: tool, event: audit.Cancel,
		help: "Jobs stopped because the caller cancelled or went away, the session was destroyed or the engine stops: durable audit events cancel.",
	},
	{
		name: "rollbacks_total", labels: []string{"tool", "reason"}, event: audit.Rollback,
		help: "Mutating jobs that changed nothing or were undone, by the code of the cause (internal: the engine ended before the job): durable audit events rollback.",
	},
	{
		name: "jobs_finished_total", labels: []string{"tool", "outcome"},
		help:     "Calls answered, refused ones too, by the code of the answer: incremented at the answer.",
		finished: func(job.Result, job.Times) (float64, bool) { return 1, true },
	},
	{
		name: "job_duration_seconds", labels: tool, buckets: []float64{.05, .1, .5, 1, 2, 5, 10, 30, 60, 120, 300, 900, 3600, 14400},
		help:     "Seconds from a call to its answer: observed at the answer.",
		finished: func(r job.Result, _ job.Times) (float64, bool) { return float64(r.Duration) / 1000, true },
	},
	{
		name: "kill_duration_seconds", buckets: short,
		help:     "Seconds from the first signal to a job's group (SIGTERM if it is late or cancelled, else the kill) to the proof that it is empty, of the slowest step: observed at the answer to a call that came so far.",
		finished: func(_ job.Result, t job.Times) (float64, bool) { return passed(t.Kill) },
	},
	{
		name: "publish_duration_seconds", buckets: short,
		help:     "Seconds from the seal of the staged outputs to durable targets: observed at the answer to a call that came so far.",
		finished: func(_ job.Result, t job.Times) (float64, bool) { return passed(t.Publish) },
	},
	{
		name: "ledger_commit_seconds", buckets: short,
		help:     "Seconds that the ledger took for the commit: observed at the answer to a call that came so far.",
		finished: func(_ job.Result, t job.Times) (float64, bool) { return passed(t.Commit) },
	},
	{
		name: "lock_wait_seconds", buckets: []float64{.001, .01, .1, 1, 5, 10, 30, 60},
		help:     "Seconds that a mutating call waited for its session and targets: observed at the answer.",
		finished: func(_ job.Result, t job.Times) (float64, bool) { return passed(t.Queued) },
	},
	{
		name: "jobs_running", help: "Jobs on their way that wait for no key, now.",
		read: func(o Options, to emit) { to(float64(o.Gauges.Running())) },
	},
	{
		name: "jobs_queued", help: "Jobs that wait for their keys, now.",
		read: func(o Options, to emit) { to(float64(o.Gauges.Queued())) },
	},
	{
		name: "unproven_jobs", help: "Jobs whose processes are not proven dead, now: their keys, targets and staging are kept.",
		read: func(o Options, to emit) { to(float64(o.Gauges.Unproven())) },
	},
	{
		name: "undecided_jobs", help: "Jobs whose undo or commit is not finished, now: their keys are kept.",
		read: func(o Options, to emit) { to(float64(o.Gauges.Undecided())) },
	},
	{
		name: "quarantined_jobs", help: "Jobs of an earlier process that wait for an operator, now: their keys are kept.",
		read: func(o Options, to emit) { to(float64(o.Gauges.Quarantined())) },
	},
	{
		name: "ledger_poisoned", help: "1 if the ledger takes nothing more until a restart, else 0.",
		read: func(o Options, to emit) { to(truth(o.Gauges.Poisoned())) },
	},
	{
		name: "groups_leftover", help: "Groups of ended jobs that are still to be removed, now.",
		read: func(o Options, to emit) { to(float64(o.Gauges.Leftover())) },
	},
	{
		name: "group_removal_oldest_seconds", help: "Seconds since the oldest unfinished removal of a group began; 0 if there is none.",
		read: func(o Options, to emit) { to(o.Gauges.OldestRemoval().Seconds()) },
	},
	{
		name: "recovered_jobs_total", labels: []string{"resolution", "proof"}, event: audit.Recovered,
		help: "Jobs of an earlier process that a start decided (proof confined: not proven dead; unknown: the event does not say): durable audit events recovered.",
	},
	{
		name: "job_cpu_seconds_total", labels: tool,
		help: "Seconds of CPU, user and system, that the processes of jobs used: added at the answer.",
		finished: func(r job.Result, _ job.Times) (float64, bool) {
			if r.Usage.CPUSeconds == nil { // the kernel does not say
				return 0, false
			}
			return *r.Usage.CPUSeconds, true
		},
	},
	{
		name: "descendants_killed_total", help: "Processes that outlived the leader of their step and were killed: added at the answer.",
		finished: func(r job.Result, _ job.Times) (float64, bool) { return float64(r.DescendantsKilled), true },
	},
	{
		name: "published_bytes_total", help: "Bytes of published outputs: added at the answer.",
		finished: func(r job.Result, _ job.Times) (sum float64, was bool) {
			for _, o := range r.Outputs {
				sum += float64(o.Bytes)
			}
			return sum, true
		},
	},
	{
		name: "escapes_detected_total", help: "Processes of tools found outside of every group: counted by the engine as it finds them.",
		read: func(o Options, to emit) { to(float64(o.Gauges.Escapes())) },
	},
	{
		name: "ready", labels: []string{"check"}, help: "1 if the check of /readyz passes or does not apply, else 0.",
		read: func(o Options, to emit) {
			for _, c := range o.Gauges.Ready() {
				to(truth(c.OK), c.Name)
			}
		},
	},
	{
		name: "build_info", labels: []string{"version", "revision", "goversion"}, help: "1; the labels say what was built.",
		read: func(o Options, to emit) { to(1, o.Version, o.Revision, runtime.Version()) },
	},
	{
		name: "containment_info", labels: containers, help: "1; the labels say how tools are contained, and are empty while that is not known.",
		read: func(o Options, to emit) {
			in, values := o.Gauges.Containment(), []string{}
			for _, label := range containers {
				values = append(values, strings.ToValidUTF8(in[label], "?")) // of the host: other bytes would end the process
			}
			to(1, values...)
		},
	},
}

// passed is a part of a call in seconds; one that took no time did not happen.
func passed(d time.Duration) (seconds float64, was bool) { return d.Seconds(), d > 0 }

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
