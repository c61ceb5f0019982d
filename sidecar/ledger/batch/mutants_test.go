//go:build edamodel

package batch

import (
	"runtime"
	"testing"
)

// TestMutants takes each guard away and wants its scenario to fail.
func TestMutants(t *testing.T) {
	for _, m := range []struct {
		name     string
		guard    *bool
		scenario func(testing.TB)
	}{
		{"loseWakeup", &loseWakeup, wake},
		{"failOnlyFirst", &failOnlyFirst, fates},
		{"ackLateRider", &ackLateRider, wake},
		{"sinkBeforeDurable", &sinkBeforeDurable, sinks},
		{"automatonNotRestored", &automatonNotRestored, orders},
		{"refuseWholeBatch", &refuseWholeBatch, fates},
		{"commitAfterPoison", &commitAfterPoison, poison},
	} {
		t.Run(m.name, func(t *testing.T) {
			if failed(t, m.scenario) {
				t.Fatal("the scenario fails with every guard in place")
			}
			*m.guard = true
			defer func() { *m.guard = false }()
			if !failed(t, m.scenario) {
				t.Error("the scenario does not need this guard")
			}
		})
	}
}

// failing is a test that may fail without failing the test that runs it.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Helper()               {}
func (f *failing) Error(...any)          { f.failed = true }
func (f *failing) Errorf(string, ...any) { f.failed = true }

func (f *failing) Fatal(...any) {
	f.failed = true
	runtime.Goexit()
}

func (f *failing) Fatalf(string, ...any) { f.Fatal() }

func failed(t testing.TB, scenario func(testing.TB)) bool {
	f, ended := &failing{TB: t}, make(chan struct{})
	go func() {
		defer close(ended)
		scenario(f)
	}()
	<-ended
	return f.failed
}
