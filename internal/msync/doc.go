// Package msync is the one shim of synchronisation primitives for the modelled cores (sidecar/lock,
// sidecar/job/outcome, sidecar/ledger/batch, sidecar/server/codec). All cancellation, lock, batch and size-limit state
// goes through it and nothing else, so that a model build can replace every primitive by a visible step of an explorer.
//
// # Guarantees
//
// In an ordinary build every name is an alias of its sync or sync/atomic counterpart, and the cores inline it (TestInlining
// in test/house). Under the tag edamodel each operation is one step of internal/explore (TestPrimitives).
//
// # Not guaranteed
//
// Channels other than close-only signals: a core that needs more needs a model of it first.
//
// # Concurrency
//
// As sync and sync/atomic.
//
// # Failure
//
// Closing a channel twice panics. Under the tag edamodel every operation outside an exploration panics (TestOutside).
//
// # Testing
//
// Used as it is.
//
// # Sources
//
// The Go memory model: atomics are sequentially consistent, so interleavings are enough.
package msync
