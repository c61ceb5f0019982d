package cgroup

import "github.com/eda-sidecar/eda-sidecar/cgroup/internal/witness"

// The proof types; only this package mints them.
type (
	// Empty is the proof that no process is left in a group. Its zero value proves nothing.
	Empty = witness.Empty
	// Confined says that a group of an earlier process cannot be seen from here; death is not claimed.
	Confined = witness.Confined
	// Ref identifies one group for as long as the kernel that made it runs.
	Ref = witness.Ref
	// How says by which observation emptiness was established.
	How = witness.How
)
