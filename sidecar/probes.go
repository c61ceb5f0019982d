package sidecar

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/metrics"
)

// probes answers kubelet and Prometheus: /livez while the process turns, /startupz once the workspace is open and
// recovered, /readyz while every check passes (with ?verbose each in a line), /metrics.
func (s *service) probes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") }) // the client is gone
	mux.HandleFunc("GET /startupz", func(w http.ResponseWriter, _ *http.Request) {
		if s.opened.Load() == nil {
			http.Error(w, "the workspace is being opened and recovered", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok") // as above
	})
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", s.metrics.Handler())
	return mux
}

func (s *service) readyz(w http.ResponseWriter, r *http.Request) {
	text, ready := "", true
	for _, c := range s.ready() {
		line := "[+] " + c.Name + " ok\n"
		if !c.OK {
			ready = false
			line = "[-] " + c.Name + ": " + c.Reason + "\n"
		}
		if !c.OK || r.URL.Query().Has("verbose") {
			text += line
		}
	}
	if !ready {
		http.Error(w, text, http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprint(w, text+"ok\n") // as above
}

// ready are the checks of readiness, always the same ones in the same order.
func (s *service) ready() []metrics.Check {
	o := s.opened.Load()
	check := func(name string, wrong func(*opened) error) metrics.Check {
		if o == nil {
			return metrics.Check{Name: name, Reason: "the workspace is being opened and recovered"}
		}
		if err := wrong(o); err != nil {
			return metrics.Check{Name: name, Reason: err.Error()}
		}
		return metrics.Check{Name: name, OK: true}
	}
	never := func(*opened) error { return nil }
	return []metrics.Check{
		check("agent", never),       // tools run beside us
		check("containment", never), // the workspace does not open without it
		check("recovery", never),    // as above; what waits for an operator stops nobody else
		check("ledger", func(o *opened) error { return o.Ledger.Poisoned() }),
		check("workspace", func(o *opened) error { return o.files.Room() }),
		check("serving", func(o *opened) error {
			switch n := o.registry.Counts(); {
			case !s.draining.Load():
				return nil
			case n.Running+n.Queued > 0:
				return fail(job.ShuttingDown, "draining", nil)
			}
			return fail(job.ShuttingDown, "drained", nil)
		}),
	}
}

// gauges are read at each scrape, from the start of the process on.
func (s *service) gauges() metrics.Gauges {
	count := func(of func(*opened) int) func() int {
		return func() int {
			if o := s.opened.Load(); o != nil {
				return of(o)
			}
			return 0
		}
	}
	return metrics.Gauges{
		Running:     count(func(o *opened) int { return o.registry.Counts().Running }),
		Queued:      count(func(o *opened) int { return o.registry.Counts().Queued }),
		Unproven:    count(func(o *opened) int { return o.registry.Counts().Unproven }),
		Undecided:   count(func(o *opened) int { return o.registry.Counts().Undecided }),
		Quarantined: count(func(o *opened) int { return len(o.waiting()) }),
		Leftover:    count(func(o *opened) int { return o.groups.Stats().Unproven }),
		Poisoned:    func() bool { o := s.opened.Load(); return o != nil && o.Ledger.Poisoned() != nil },
		OldestRemoval: func() time.Duration {
			if o := s.opened.Load(); o != nil {
				return o.groups.Stats().OldestRemoval
			}
			return 0
		},
		Escapes: func() int64 {
			if o := s.opened.Load(); o != nil {
				return o.groups.Stats().Escapes
			}
			return 0
		},
		Ready: s.ready,
		Containment: func() map[string]string {
			o := s.opened.Load()
			if o == nil {
				return nil
			}
			c := o.groups.Capabilities()
			return map[string]string{
				"cgroup": string(c.Kind), "entry": string(c.Entry), "landlock_abi": strconv.Itoa(c.LandlockABI), "uid": strconv.Itoa(c.UID), "limits": limits(s.cfg),
			}
		},
	}
}

func limits(cfg Config) string {
	if cfg.LimitsRequired {
		return "required"
	}
	return "best-effort"
}
