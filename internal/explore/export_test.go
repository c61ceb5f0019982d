//go:build edamodel

package explore

// AtDeadlock returns c for a search that goes on after a deadlock, and calls f there.
func (c Config) AtDeadlock(f func()) Config { c.deadlock = f; return c }

// Break takes one part of the explorer away, until restore.
func Break(part string) (restore func()) { fault = part; return func() { fault = "" } }
