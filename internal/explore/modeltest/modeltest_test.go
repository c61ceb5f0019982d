package modeltest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/internal/explore"
)

var away bool // the guard of the model

func touch(n *int) {
	explore.Do(&explore.Op{Name: "Add", On: [2]any{n}, Do: func(int) (any, explore.Order) { *n++; return *n, 0 }})
}

// model fails without its guard if the second thread comes first.
func model(m *explore.M) {
	var n int
	m.Go("a", func() { touch(&n) })
	m.Go("b", func() {
		touch(&n)
		if away && n == 1 {
			m.Failf("b came first")
		}
	})
}

func TestHolds(t *testing.T)  { Holds(t, model) }
func TestCaught(t *testing.T) { Caught(t, &away, explore.Invariant, "came first", model) }

// recorder is a test that says how it failed.
type recorder struct {
	testing.TB
	said string
}

func (r *recorder) Helper()                        {}
func (r *recorder) Errorf(format string, a ...any) { r.said += fmt.Sprintf(format, a...) }

func (r *recorder) Fatal(a ...any) {
	r.said += fmt.Sprint(a...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, a ...any) { r.Fatal(fmt.Sprintf(format, a...)) }

// said returns how a test fails.
func said(t *testing.T, test func(testing.TB)) string {
	r, over := &recorder{TB: t}, make(chan struct{})
	go func() {
		defer close(over)
		test(r)
	}()
	<-over
	return r.said
}

func TestVerdicts(t *testing.T) {
	set := func(v bool, test func(testing.TB)) func(testing.TB) {
		return func(t testing.TB) { away = v; defer func() { away = false }(); test(t) }
	}
	n := 0
	fickle := func(m *explore.M) { // fails twice alike, then otherwise
		if away {
			n++
		}
		m.Go("a", func() { touch(new(int)); touch(new(int)) })
		m.Go("b", func() {
			if touch(new(int)); away {
				m.Failf("late: %t", n > 2)
			}
		})
	}
	single := func(m *explore.M) { m.Go("a", func() {}) }
	for name, tt := range map[string]struct {
		test func(testing.TB)
		want string
	}{
		"fails":         {set(true, func(t testing.TB) { Holds(t, model) }), "b came first\nschedule 1"},
		"no_model":      {func(t testing.TB) { Holds(t, single) }, "1 threads"},
		"no_need":       {func(t testing.TB) { Caught(t, new(bool), explore.Invariant, "", model) }, "no schedule needs the guard"},
		"other_kind":    {func(t testing.TB) { Caught(t, &away, explore.Deadlock, "came first", model) }, "want deadlock"},
		"other_reason":  {func(t testing.TB) { Caught(t, &away, explore.Invariant, "a came first", model) }, "want invariant with"},
		"away_before":   {set(true, func(t testing.TB) { Caught(t, &away, explore.Invariant, "came first", model) }), "the guard is away"},
		"other_replay":  {func(t testing.TB) { Caught(t, &away, explore.Invariant, "late: false", fickle) }, "the replay of"},
		"fails_at_once": {func(t testing.TB) { Caught(t, new(bool), explore.Limit, "1 threads", single) }, "1 threads"},
	} {
		if got := said(t, tt.test); !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv(variable, "1.0")
	if got := said(t, func(t testing.TB) { Holds(t, model) }); !strings.Contains(got, "this schedule holds:\n  1  1 b            Add #1 = 1") {
		t.Errorf("got %q", got)
	}
	if got := said(t, func(t testing.TB) { Caught(t, &away, explore.Invariant, "came first", model) }); !strings.Contains(got, "b came first") || away {
		t.Errorf("got %q", got)
	}
}
