package outcome

import (
	"errors"
	"fmt"
	"testing"
)

// A scenario forces one order of calls and says what went wrong, if anything did. In the ordinary build every
// scenario must hold; with the tag edamodel mutants_test.go takes one guard away at a time, and the scenario named
// for it must fail.
var scenarios = map[string]func() error{
	"abortWins":        abortWins,
	"abortAfterFinish": abortAfterFinish,
	"publishWins":      publishWins,
	"lateRegistration": lateRegistration,
	"killOnce":         killOnce,
	"unproven":         unproven,
	"releaseOnce":      releaseOnce,
	"provenLater":      provenLater,
	"handOver":         handOver,
	"gate":             gate,
}

func TestScenarios(t *testing.T) {
	for name, run := range scenarios {
		t.Run(name, func(t *testing.T) {
			if err := run(); err != nil {
				t.Error(err)
			}
		})
	}
}

func abortWins() error {
	var c Cell
	if !c.Abort(Deadline) || c.Aborted() != Deadline {
		return errors.New("an abort of a running job must win")
	}
	if c.BeginPublish() {
		return errors.New("published after an abort")
	}
	if c.Abort(Cancelled) || c.Aborted() != Deadline {
		return errors.New("a second abort took the first one's place")
	}
	return nil
}

func abortAfterFinish() error {
	var c Cell
	c.Finish(Read)
	if c.Abort(Cancelled) {
		return errors.New("aborted after the end")
	}
	return nil
}

func publishWins() error {
	var c Cell
	killed := 0
	c.Register(func() { killed++ })
	if !c.BeginPublish() {
		return errors.New("a running job must be able to publish")
	}
	if c.Abort(Cancelled) || c.Aborted() != None || killed != 0 {
		return errors.New("an abort won after publication began")
	}
	return nil
}

func lateRegistration() error {
	var c Cell
	c.Abort(Cancelled)
	if c.Register(func() {}) {
		return errors.New("a handle that nobody will call was accepted")
	}
	return nil
}

func killOnce() error {
	var c Cell
	killed := 0
	c.Register(func() { killed++ })
	c.Abort(Cancelled)
	c.mu.Lock()
	left := c.kill
	c.mu.Unlock()
	if killed != 1 || left != nil {
		return fmt.Errorf("killed %d times, handle left: %t", killed, left != nil)
	}
	var d Cell
	d.Register(func() { killed++ })
	d.Unregister()
	d.Abort(Cancelled)
	if killed != 1 {
		return errors.New("killed a step that had been proven dead")
	}
	return nil
}

func unproven() error {
	for _, end := range []End{Unproven, InDoubt, Undecided} {
		var c Cell
		released := 0
		c.Hold(func() { released++ })
		if !c.Finish(end) || released != 0 {
			return fmt.Errorf("end %d released the keys", end)
		}
	}
	return nil
}

func releaseOnce() error {
	var c Cell
	released := 0
	c.Hold(func() { released++ })
	first, second := c.Finish(RolledBack), c.Finish(Committed)
	if !first || second || released != 1 || c.End() != RolledBack {
		return fmt.Errorf("released %d times, end %d", released, c.End())
	}
	return nil
}

func provenLater() error {
	var c Cell
	released := 0
	c.Hold(func() { released++ })
	c.Finish(Unproven)
	if !c.Finish(RolledBack) || released != 1 || c.End() != RolledBack {
		return fmt.Errorf("released %d times, end %d", released, c.End())
	}
	return nil
}

func handOver() error {
	var c Cell
	if !c.Abandon(Cancelled) || c.Detach() {
		return errors.New("a job was handed over after its caller had abandoned it")
	}
	var d Cell
	if !d.Detach() || d.Abandon(Cancelled) || d.Aborted() != None {
		return errors.New("a job that was handed over ended with its caller")
	}
	return nil
}

func gate() error {
	var g Gate
	if !g.Enter() {
		return errors.New("an open gate refused")
	}
	idle := g.Drain()
	if g.Enter() {
		return errors.New("admitted after the drain began")
	}
	select {
	case <-idle:
		return errors.New("idle with a call inside")
	default:
	}
	g.Leave()
	select {
	case <-idle:
		return nil
	default:
		return errors.New("not idle when the last call had left")
	}
}
