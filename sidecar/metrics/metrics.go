package metrics

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// Options of a Sink.
type Options struct {
	Version, Revision string   // of the binary; may be empty
	Tools             []string // names of the catalogue's tools; New adds "session", "run" and "other"
	Gauges            Gauges
}

// Gauges are read at each scrape. Every field must be set; none may block.
type Gauges struct {
	Running       func() int               // jobs on their way that wait for no key
	Queued        func() int               // jobs that wait for their keys
	Unproven      func() int               // jobs whose processes are not proven dead
	Undecided     func() int               // jobs whose undo or commit is not finished
	Quarantined   func() int               // jobs that wait for an operator
	Leftover      func() int               // groups that are still to be removed
	Poisoned      func() bool              // the ledger takes nothing more until a restart
	OldestRemoval func() time.Duration     // age of the oldest removal of a group; 0: none
	Escapes       func() int64             // processes found outside of every group, since the start
	Ready         func() []Check           // the checks of /readyz, always the same ones, each once
	Containment   func() map[string]string // cgroup, entry, landlock_abi, uid and limits in force; empty: not known
}

// Check is one check of /readyz.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"` // why not; empty if OK
}

// Sink counts. Make one with [New]. It is the ledger's sink of events and the runner's [job.Metrics].
type Sink struct {
	// fixed at creation
	registry *prometheus.Registry
	values   map[string][]string // of each label; the last one is for all that are not in the set
	moved    []moved
}

// moved is a row of the table that is not read but moved, with its series.
type moved struct {
	metric
	series func(values ...string) (move func(float64)) // adds to a counter, or is observed by a histogram
}

// New returns a sink with every series at 0, beside the collectors of Go and the process.
func New(o Options) *Sink {
	s := &Sink{registry: prometheus.NewRegistry(), values: labelValues(o.Tools)}
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, m := range table {
		name := "eda_sidecar_" + m.name
		row := moved{metric: m}
		switch {
		case m.read != nil:
			s.registry.MustRegister(function{m, o, prometheus.NewDesc(name, m.help, m.labels, nil)})
			continue
		case m.buckets != nil:
			h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: m.help, Buckets: m.buckets}, m.labels)
			s.registry.MustRegister(h)
			row.series = func(values ...string) func(float64) { return h.WithLabelValues(values...).Observe }
		default:
			c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: m.help}, m.labels)
			s.registry.MustRegister(c)
			row.series = func(values ...string) func(float64) { return c.WithLabelValues(values...).Add }
		}
		s.moved = append(s.moved, row)
		s.each(m.labels, nil, func(values []string) { row.series(values...) })
	}
	return s
}

// labelValues are the closed sets.
func labelValues(tools []string) map[string][]string {
	var codes []string
	for _, c := range job.Codes() {
		codes = append(codes, strings.ToLower(string(c.Code)))
	}
	return map[string][]string{
		"tool":       slices.Concat(tools, []string{job.SessionTool, "run", "other"}),
		"outcome":    codes,     // ends with internal
		"reason":     codes[1:], // nothing is undone for ok
		"resolution": {"discarded", "rolled_back", "rolled_forward", "conflict", "quarantined", "unknown"},
		"proof":      {"read", "removed", "gone", "reboot", "confined", "earlier", "unknown"},
	}
}

// each calls f with every combination of the labels' values behind head. f must not keep them.
func (s *Sink) each(labels, head []string, f func([]string)) {
	if len(labels) == 0 {
		f(head)
		return
	}
	for _, v := range s.values[labels[0]] {
		s.each(labels[1:], append(head, v), f)
	}
}

// move moves the series of a row that the values of its labels name.
func (s *Sink) move(m moved, by float64, value func(label string) string) {
	var values []string
	for _, label := range m.labels {
		set := s.values[label]
		v := value(label)
		if !slices.Contains(set, v) {
			v = set[len(set)-1]
		}
		values = append(values, v)
	}
	m.series(values...)(by)
}

// Event counts a durable event: one of the ledger's sinks.
func (s *Sink) Event(e audit.Event) {
	for _, m := range s.moved {
		if m.event != e.Kind {
			continue
		}
		s.move(m, 1, func(label string) string {
			text := func(key string) string { v, _ := e.Data[key].(string); return v }
			switch label {
			case "tool":
				return e.Tool
			case "reason":
				return strings.ToLower(text("code"))
			}
			return text(label) // resolution, proof
		})
	}
}

// Finished counts the answer to a call.
func (s *Sink) Finished(r job.Result, t job.Times) {
	for _, m := range s.moved {
		if m.finished == nil {
			continue
		}
		if by, was := m.finished(r, t); was {
			s.move(m, by, func(label string) string {
				if label == "tool" {
					return r.Tool
				}
				return strings.ToLower(string(r.Code)) // outcome
			})
		}
	}
}

// Handler serves the metrics in the text format of Prometheus.
func (s *Sink) Handler() http.Handler {
	return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{DisableCompression: true}) // a scrape is local, and 200 KiB
}

// function is a row that is read: a prometheus.Collector.
type function struct {
	metric
	o    Options
	desc *prometheus.Desc
}

func (f function) Describe(to chan<- *prometheus.Desc) { to <- f.desc }

func (f function) Collect(to chan<- prometheus.Metric) {
	kind := prometheus.GaugeValue
	if strings.HasSuffix(f.name, "_total") {
		kind = prometheus.CounterValue
	}
	f.read(f.o, func(v float64, values ...string) { to <- prometheus.MustNewConstMetric(f.desc, kind, v, values...) })
}
