//go:build edamodel

package msync

import (
	"fmt"
	"strings"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/internal/explore"
	"github.com/eda-sidecar/eda-sidecar/internal/explore/modeltest"
)

// TestPrimitives holds the model against what sync and sync/atomic promise.
func TestPrimitives(t *testing.T) {
	modeltest.Holds(t, func(m *explore.M) {
		var word Uint32
		var big Int64
		var flag Bool
		var at Pointer[int]
		var lock Mutex
		var plain int
		a, b := make(chan struct{}), make(chan struct{})
		m.Go("first", func() {
			lock.Lock()
			m.Access(&plain, "plain", true)
			plain = 1
			lock.Unlock()
			at.Store(&plain)
			Close(a)
			word.CompareAndSwap(0, 7)
		})
		m.Go("second", func() {
			if First(a, b) != 0 {
				m.Failf("b was closed by nobody")
			}
			Recv(a)
			if p := at.Load(); p == nil || *p != 1 {
				m.Failf("what was stored before the close is not there")
			}
			m.Access(&plain, "plain", false)
			if !lock.TryLock() || lock.TryLock() {
				m.Failf("want the lock free, then held")
			}
			if big.Add(2) != 2 || flag.Swap(true) || !flag.Load() || !word.CompareAndSwap(7, 8) && word.CompareAndSwap(8, 9) {
				m.Failf("wrong arithmetic")
			}
		})
		m.Finally(func() {
			if w := word.Load(); w != 7 && w != 8 {
				m.Failf("got %d", w)
			}
		})
	})
}

// TestMistakes wants those that sync and the runtime end the process for to end the schedule.
func TestMistakes(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(m *Mutex, ch chan struct{})
		want string
	}{
		{"unlock", func(m *Mutex, _ chan struct{}) { m.Unlock() }, "panic: \"a\": unlock of a mutex that nobody holds"},
		{"close_twice", func(_ *Mutex, ch chan struct{}) { Close(ch); Close(ch) }, "panic: \"a\": close of closed channel"},
		{"lock_twice", func(m *Mutex, _ chan struct{}) { m.Lock(); m.Lock() }, "deadlock: \"a\" waits in Lock"},
		{"never", func(_ *Mutex, ch chan struct{}) { Recv(ch) }, "deadlock: \"a\" waits in Recv"},
		{"never_first", func(_ *Mutex, ch chan struct{}) { First(ch, nil) }, "deadlock: \"a\" waits in First"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := explore.Explore(explore.Config{}, func(m *explore.M) {
				var mu Mutex
				ch := make(chan struct{})
				m.Go("a", func() { tt.do(&mu, ch) })
				m.Go("b", func() {})
			}).Failure
			if f == nil || !strings.HasPrefix(f.String(), tt.want+"\n") {
				t.Errorf("want %s, got %v", tt.want, f)
			}
		})
	}
}

func TestOutside(t *testing.T) {
	defer func() {
		if r := fmt.Sprint(recover()); !strings.Contains(r, "Lock outside an exploration") {
			t.Errorf("got %s", r)
		}
	}()
	new(Mutex).Lock()
}
