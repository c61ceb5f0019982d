package cgrouptest

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
)

// Each thing left behind is reported; the control is the count without it.
func TestWhatIsLeftBehindIsReported(t *testing.T) {
	dir := t.TempDir()
	before := take(dir)
	if diff := before.diff(take(dir)); diff != "" {
		t.Fatalf("nothing was left, reported %s", diff)
	}
	f, err := os.Open("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	if diff := before.diff(take(dir)); !strings.Contains(diff, "descriptor") {
		t.Errorf("an open file: %q", diff)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("/bin/true")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if diff := before.diff(take(dir)); !strings.Contains(diff, "child") {
		t.Errorf("a child, alive or a zombie: %q", diff)
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir+"/group", 0o755); err != nil {
		t.Fatal(err)
	}
	if diff := before.diff(take(dir)); diff != dir+"/group" {
		t.Errorf("a group: %q", diff)
	}
	if diff := (count{}).diff(count{threads: threadSlack + 1}); !strings.Contains(diff, "threads") {
		t.Errorf("threads: %q", diff)
	}
}

func TestMintedProofs(t *testing.T) {
	ref, other := Ref("a"), Ref("b")
	if !Empty(ref).Proves(ref) || Empty(ref).Proves(other) || (cgroup.Empty{}).Proves(ref) || (cgroup.Empty{}).Proves(cgroup.Ref{}) {
		t.Error("a proof is for its own group")
	}
	if !Confined(ref, "why").Covers(ref) || Confined(ref, "why").Covers(other) || (cgroup.Confined{}).Covers(ref) {
		t.Error("a Confined is for its own group")
	}
	NeedRoot(t)
	NeedLandlock(t, 3)
	NeedCgroup2(t)
	Invariant(t)
}
