package cgroup

import "testing"

// invariant is cgrouptest.Invariant, which tests of this package cannot import: TestMain hands it in.
var invariant func(t testing.TB, dirs ...string)

// Prepare hands in what only the external test package can import, and runs the work of a re-executed child.
func Prepare(check func(t testing.TB, dirs ...string)) {
	invariant = check
	Child()
	villainMain()
	if err := SecureProcess(); err != nil {
		panic(err)
	}
}
