package cgroup

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// invariant is cgrouptest.Invariant, which tests of this package cannot import: TestMain hands it in.
var invariant func(t testing.TB, dirs ...string)

// Prepare hands in what only the external test package can import, and runs the work of a re-executed child.
func Prepare(check func(t testing.TB, dirs ...string)) {
	invariant = check
	Child()
	villainMain()
	if refusedClone3() {
		refuseClone3()
	}
	if err := SecureProcess(); err != nil {
		panic(err)
	}
}

// refuseClone3 installs a seccomp filter that answers ENOSYS to clone3, on all threads and all their children.
func refuseClone3() {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the system call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_CLONE3, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); errno != 0 {
		panic(errno)
	}
}
