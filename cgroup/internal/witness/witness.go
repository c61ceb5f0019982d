// Package witness holds the proof types of package cgroup: values that say "this group is empty" or "this group
// can no longer be seen". They live in an internal package so that only cgroup and the test package
// cgroup/cgrouptest can make one; everybody else can demand one, and check whose it is.
//
// # Guarantees
//
// The zero value proves nothing (G1): [Empty.Proves] and [Confined.Covers] are false for it and for any other group.
//
// # Not guaranteed
//
// That a Confined group is dead: it only says that death cannot be seen from here (G9).
//
// # Concurrency
//
// All types are immutable values.
//
// # Failure
//
// Nothing here fails.
//
// # Testing
//
// Tests outside cgroup take their proofs from cgroup/cgrouptest.
//
// # Sources
//
// Linux Documentation/admin-guide/cgroup-v2.rst, "[Un]populated Notification".
package witness

import "time"

// Ref identifies one cgroup for as long as the kernel that made it runs. It is plain JSON, kept in the journal.
type Ref struct {
	Node     string `json:"node"`      // host name or the configured node
	BootID   string `json:"boot_id"`   // /proc/sys/kernel/random/boot_id
	CgroupNS string `json:"cgroup_ns"` // inode of /proc/self/ns/cgroup, decimal
	Dev      uint64 `json:"dev"`       // st_dev of the cgroup2 mount
	Parent   uint64 `json:"parent"`    // inode of the directory that holds the group
	Path     string `json:"path"`      // relative to the cgroup2 mount point
	Inode    uint64 `json:"inode"`     // inode of the group's directory, never reused within a boot
}

// How says by which observation emptiness was established.
type How string

// The ways in which a group is known to be empty.
const (
	Read    How = "read"    // populated 0 was read from the held cgroup.events
	Removed How = "removed" // the held descriptor answers ENODEV: the directory itself is gone
	Gone    How = "gone"    // recovery: the directory is absent below the same parent, device and boot
	Reboot  How = "reboot"  // recovery: the same node has booted since
)

// Empty is the proof that no process is left in a group. Its zero value proves nothing.
type Empty struct {
	group Ref
	at    time.Time
	how   How
}

// NewEmpty mints a proof. Only packages below cgroup can call it.
func NewEmpty(group Ref, at time.Time, how How) Empty { return Empty{group: group, at: at, how: how} }

// Proves reports whether e is a proof for exactly the group ref.
func (e Empty) Proves(ref Ref) bool { return e.how != "" && ref != (Ref{}) && e.group == ref }

// Group returns the group that was proven empty; the zero Ref for the zero value.
func (e Empty) Group() Ref { return e.group }

// At returns when emptiness was observed.
func (e Empty) At() time.Time { return e.at }

// How returns the observation; empty for the zero value.
func (e Empty) How() How { return e.how }

// Confined says that a group of an earlier process cannot be seen from here, so that its death is not claimed.
// Its zero value covers nothing.
type Confined struct {
	group Ref
	why   string
}

// NewConfined mints a Confined. Only packages below cgroup can call it. why must not be empty.
func NewConfined(group Ref, why string) Confined { return Confined{group: group, why: why} }

// Covers reports whether c speaks of exactly the group ref.
func (c Confined) Covers(ref Ref) bool { return c.why != "" && ref != (Ref{}) && c.group == ref }

// Group returns the group that cannot be seen.
func (c Confined) Group() Ref { return c.group }

// Why says what differs: node, boot, cgroup namespace, device, parent or inode.
func (c Confined) Why() string { return c.why }
