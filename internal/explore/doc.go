// Package explore runs a small concurrent program under every schedule that can make a difference. Threads of a model are
// coroutines, of which one runs at a time; each operation of a modelled primitive (internal/msync) is a step at which the
// explorer decides who goes on. It keeps no states: each schedule runs the body again from its beginning.
//
// # Guarantees
//
//   - A result that is Complete and without a Failure has seen every final state that any schedule can reach, for atomics,
//     mutexes, close-only channels and Choose (TestDifferential: DFS, Sleep and DPOR agree on random programs).
//   - A limit that ends a search is a Failure, as are a program of one thread, a body that does not do the same under the
//     same schedule, and a goroutine that the explorer does not know (TestFailures).
//   - The schedule of a Failure reproduces it (TestReplay).
//
// # Not guaranteed
//
// Weak memory: Go's atomics are sequentially consistent, so interleavings are enough; plain fields are checked where the
// model calls [M.Access], and nowhere else. Programs that do not end: a loop that waits for another thread by polling
// meets the limit of steps.
//
// # Concurrency
//
// One exploration at a time in a process.
//
// # Failure
//
// Explore returns the first failure. It panics only for its own caller's mistakes: an exploration within another.
//
// # Testing
//
// By internal/explore/modeltest, beside each core, under the tag edamodel. docs/verification.md says how to read a trace.
//
// # Sources
//
// Abdulla, Aronis, Jonsson, Sagonas: "Optimal Dynamic Partial Order Reduction", POPL 2014 (source sets; algorithm 1), and
// "Source Sets", JACM 2017 (operations that block); Godefroid 1996 (sleep sets); Flanagan and Godefroid, POPL 2005.
package explore
