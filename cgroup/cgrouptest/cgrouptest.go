// Package cgrouptest mints proofs for tests that have no kernel to ask. A layering test keeps it out of the product.
package cgrouptest

import (
	"time"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/cgroup/internal/witness"
)

// Ref returns a made-up group named name.
func Ref(name string) cgroup.Ref {
	return cgroup.Ref{Node: "test", BootID: "test", CgroupNS: "1", Dev: 1, Parent: 1, Path: "/" + name, Inode: 1}
}

// Empty returns a proof for ref, as if populated 0 had been read.
func Empty(ref cgroup.Ref) cgroup.Empty { return witness.NewEmpty(ref, time.Now(), witness.Read) }

// Confined returns a Confined for ref.
func Confined(ref cgroup.Ref, why string) cgroup.Confined { return witness.NewConfined(ref, why) }
