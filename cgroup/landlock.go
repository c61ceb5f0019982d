package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sandbox says what a tool may touch beside the system's own directories. All paths are absolute.
type Sandbox struct {
	Job       []string // directories of the job: read, write, execute, and rename or link between them
	Workspace string   // listed; each entry of it but .eda-sidecar may be read and executed; "" = none
	Readable  []string // may be read and executed (tool prefixes, PDKs); missing ones are skipped
	Hidden    []string // no rule may open these or anything below (state directory outside of the workspace)
	Network   bool     // TCP is allowed (licence servers)
	UID, GID  int      // of the tool; -1 = ours
}

// minABI is the lowest Landlock ABI that keeps a tool from truncating foreign files (Linux 6.2).
const minABI = 3

// stateName is the directory in a workspace that is ours.
const stateName = ".eda-sidecar"

const (
	accessRead    = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	accessExec    = accessRead | unix.LANDLOCK_ACCESS_FS_EXECUTE
	accessDevice  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	accessNoChild = unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	// accessFile are the rights that a rule on a plain file may have; any other is EINVAL.
	accessFile = unix.LANDLOCK_ACCESS_FS_EXECUTE | accessDevice | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV | unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
)

// handledFS returns all file rights that an ABI knows.
func handledFS(abi int) uint64 {
	all := uint64(unix.LANDLOCK_ACCESS_FS_MAKE_SYM)<<1 - 1 // ABI 1: EXECUTE to MAKE_SYM
	for since, right := range [...]uint64{
		2: unix.LANDLOCK_ACCESS_FS_REFER, 3: unix.LANDLOCK_ACCESS_FS_TRUNCATE,
		5: unix.LANDLOCK_ACCESS_FS_IOCTL_DEV, 9: unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX,
	} {
		if abi >= since {
			all |= right
		}
	}
	return all
}

// landlockABI returns the kernel's ABI, at most limit (0 = any); 0 if there is no Landlock.
func landlockABI(limit int) int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	if limit == 0 {
		return int(abi)
	}
	return min(int(abi), limit)
}

// ruleset builds the Landlock ruleset of one tool: handled is all that the ABI knows, and what no rule grants is denied.
// Source: Linux Documentation/userspace-api/landlock.rst.
func (p *Parent) ruleset(c Command) (*os.File, error) {
	abi, off := p.caps.LandlockABI, p.o.off
	attr := unix.LandlockRulesetAttr{Handled_access_fs: handledFS(abi) &^ off.fs}
	if abi >= 4 && !c.Sandbox.Network {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if abi >= 6 {
		attr.Scoped = (unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL) &^ off.scopes
	}
	// A larger structure than the kernel's is fine as long as what it does not know is 0.
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return nil, fmt.Errorf("create ruleset: %w", errno)
	}
	ruleset := os.NewFile(n, "landlock")
	r := &rules{fd: int(n), handled: attr.Handled_access_fs}
	if err := r.addAll(p.system, c); err != nil {
		closeFile(ruleset)
		return nil, err
	}
	return ruleset, nil
}

// grant is a path that was opened for a rule.
type grant struct {
	path   string // without links
	f      *os.File
	access uint64
}

// openGrant opens path for a rule, without following a link; the file is nil if there is nothing to grant.
func openGrant(path string, access uint64) (grant, error) {
	f, err := openAt(unix.AT_FDCWD, path, unix.O_PATH|unix.O_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) {
		return grant{}, nil
	} else if err != nil {
		return grant{}, fmt.Errorf("grant: %w", err)
	}
	info, err := f.Stat()
	var st unix.Statfs_t
	if err = errors.Join(err, unix.Fstatfs(fd(f), &st)); err == nil && (st.Type == unix.CGROUP2_SUPER_MAGIC || st.Type == unix.CGROUP_SUPER_MAGIC) {
		err = ErrSandbox // a tool reads cgroupfs by the rule on /sys, and no more
	}
	if err != nil || info.Mode()&fs.ModeSymlink != 0 {
		closeFile(f)
		return grant{}, err
	}
	if !info.IsDir() {
		access &= accessFile
	}
	return grant{path, f, access}, nil
}

// openReal does the same for what path leads to.
func openReal(path string, access uint64) (grant, error) {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return grant{}, nil
	} else if err != nil {
		return grant{}, fmt.Errorf("grant %q: %w", path, err)
	}
	return openGrant(real, access)
}

// openSystem opens what every tool may use, once.
func (p *Parent) openSystem(context.Context) error {
	libs, err := filepath.Glob("/lib*")
	for access, paths := range map[uint64][]string{
		accessExec: append([]string{"/usr", "/bin", "/sbin", "/opt", "/nix"}, libs...),
		// A rule on /proc/self would bind to the directory of this process.
		accessRead:   {"/etc", "/proc", "/sys", "/dev/random", "/dev/urandom"},
		accessDevice: {"/dev/null", "/dev/zero", "/dev/full"},
	} {
		for _, path := range paths {
			g, openErr := openReal(path, access)
			err = errors.Join(err, openErr)
			p.system = append(p.system, g)
		}
	}
	return err
}

// rules is a ruleset that is being filled.
type rules struct {
	fd      int
	handled uint64
	hidden  []string // without links
}

// addAll adds the rules of the table in the design: system, devices, readable; job; workspace.
func (r *rules) addAll(system []grant, c Command) (err error) {
	s := c.Sandbox
	for _, h := range append([]string{filepath.Join(s.Workspace, stateName)}, s.Hidden...) {
		if real, err := filepath.EvalSymlinks(h); err == nil { // what does not exist needs no hiding
			r.hidden = append(r.hidden, real)
		}
	}
	for _, g := range system {
		err = errors.Join(err, r.addVisible(g))
	}
	readable := slices.Clone(s.Readable)
	if !slices.ContainsFunc(s.Job, func(d string) bool { return within(c.Path, d) }) { // what a job built itself is granted
		readable = append(readable, c.Path)
	}
	for _, path := range readable {
		g, openErr := openReal(path, accessExec)
		err = errors.Join(err, openErr, r.addVisible(g))
		closeFile(g.f)
	}
	own := func(g grant, openErr error) { // below what is hidden, or beside it
		err = errors.Join(err, openErr, r.add(g))
		closeFile(g.f)
	}
	for _, d := range s.Job {
		g, openErr := openReal(d, r.handled&^accessNoChild)
		if openErr == nil && g.f == nil {
			openErr = fmt.Errorf("grant %q: it is missing: %w", d, ErrSandbox)
		}
		own(g, openErr)
	}
	if s.Workspace == "" {
		return err
	}
	own(openReal(s.Workspace, unix.LANDLOCK_ACCESS_FS_READ_DIR))
	entries, listErr := os.ReadDir(s.Workspace)
	for _, e := range entries { // links are left out: they would open what they point to
		if e.Name() != stateName && (e.IsDir() || e.Type().IsRegular()) {
			own(openGrant(filepath.Join(s.Workspace, e.Name()), accessExec))
		}
	}
	return errors.Join(err, listErr)
}

// addVisible adds a rule outside of the job. One that would open a hidden directory is ErrSandbox.
func (r *rules) addVisible(g grant) error {
	for _, h := range r.hidden {
		if g.f != nil && (within(h, g.path) || within(g.path, h)) {
			return fmt.Errorf("grant %q: it holds or lies in %q, which tools must not read: %w", g.path, h, ErrSandbox)
		}
	}
	return r.add(g)
}

func (r *rules) add(g grant) error {
	if g.f == nil || g.access&r.handled == 0 { // an empty rule is ENOMSG
		return nil
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: g.access & r.handled, Parent_fd: int32(g.f.Fd())}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r.fd), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("grant %q: %w", g.path, errno)
	}
	return nil
}

// within reports whether p is dir or below it; both are clean and absolute.
func within(p, dir string) bool {
	rest, ok := strings.CutPrefix(p, strings.TrimSuffix(dir, "/"))
	return ok && (rest == "" || rest[0] == '/')
}

// restrictThread takes from the calling thread, for good, what a tool must not have: new privileges by exec, the
// bounding, ambient and inheritable capabilities, and everything that the ruleset does not grant. All of it is per
// thread, and inherited by the tool. ruleset < 0 and keepBounding are for negative controls.
func restrictThread(ruleset int, keepBounding bool) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if !keepBounding && canDropBounding() {
		if err := dropCapabilities(); err != nil {
			return err
		}
	}
	if ruleset < 0 {
		return nil
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0); errno != 0 {
		return fmt.Errorf("landlock_restrict_self: %w", errno)
	}
	return nil
}

// canDropBounding reports whether the calling thread has CAP_SETPCAP.
func canDropBounding() bool {
	var data [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_SETPCAP) != 0
}

// boundingEmpty reports whether the calling thread's bounding set is empty.
func boundingEmpty() bool {
	for c := range uintptr(64) {
		if v, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err == nil && v == 1 {
			return false
		}
	}
	return true
}

// dropCapabilities empties the bounding, ambient and inheritable sets: an exec as root then gives no capability.
// What the thread holds itself stays until the exec, because the change of uid needs it.
func dropCapabilities() error {
	for c := range uintptr(64) {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			if errors.Is(err, unix.EINVAL) {
				break // beyond the kernel's last capability
			}
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	data[0].Inheritable, data[1].Inheritable = 0, 0
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("clear inheritable capabilities: %w", err)
	}
	return nil
}
