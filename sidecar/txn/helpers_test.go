package txn

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func owner(fi fs.FileInfo) int { return int(fi.Sys().(*syscall.Stat_t).Uid) }

// descriptors counts what this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(fds)
}

// TestUnprivileged runs the straight way, undo, inspection and trash as a user who is not root: he cannot give files
// away, and what he cannot read he must open first.
func TestUnprivileged(t *testing.T) {
	const nobody = 65534
	dir := shm(t)
	must(t, os.Chmod(dir, 0o755))
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	binary := filepath.Join(dir, "txn.test")
	syscall.ForkLock.RLock() // golang/go#22315: a fork in between would inherit it, open for writing
	err = os.WriteFile(binary, self, 0o755)
	syscall.ForkLock.RUnlock()
	must(t, err)
	tmp := filepath.Join(dir, "tmp")
	must(t, os.Mkdir(tmp, 0o755))
	must(t, os.Chown(tmp, nobody, nobody))
	const run = "^(TestStraight|TestUndoAfterEachStep|TestForeignEdits|TestTrash|TestInspectFinds|TestSecondUndoSyncs)$"
	cmd := exec.Command(binary, "-test.run="+run, "-test.v")
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if passed := strings.Count(string(out), "\n--- PASS") + strings.Count(string(out), "\n    --- PASS"); err != nil || passed < 20 {
		t.Errorf("as uid %d: %v, %d passed\n%s", nobody, err, passed, out)
	}
}
