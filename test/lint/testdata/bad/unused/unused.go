// Package unused has a field that nothing reads.
package unused

// T is a type.
type T struct{ neverRead int }
