package cgroup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Access to cgroupfs: always openat on a held directory descriptor, never with O_CREAT (an absent file would then
// answer EACCES instead of ENOENT).

// retry repeats f while a signal interrupts it.
func retry[T any](f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}

// openAt opens name below dir, close-on-exec. The file never enters Go's poller (its descriptor is blocking), and its
// reference count keeps a late reader from a descriptor that was closed and given to another file.
func openAt(dir int, name string, flags int) (*os.File, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func openDir(dir int, name string) (*os.File, error) {
	return openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
}

// fd returns the descriptor of f; that of a closed or missing file is invalid.
func fd(f *os.File) int { return int(int32(f.Fd())) }

func closeFile(f *os.File) {
	_ = f.Close() // nothing is buffered in it; nil or closed is fine
}

// readAll returns up to limit bytes of f from offset 0, and whether there may be more.
func readAll(f *os.File, limit int) (data []byte, more bool, err error) {
	buf := make([]byte, limit)
	n, err := f.ReadAt(buf, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return buf[:n], n == limit, err
}

// readAt returns the content of a small file below dir.
func readAt(dir int, name string) (string, error) {
	f, err := openAt(dir, name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer closeFile(f)
	data, _, err := readAll(f, 8<<10)
	return string(data), err
}

// writeAt writes value to a file below dir that must exist.
func writeAt(dir int, name, value string) error {
	f, err := openAt(dir, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer closeFile(f)
	_, err = f.WriteString(value)
	return err
}

func existsAt(dir int, name string) bool {
	return unix.Faccessat(dir, name, unix.F_OK, 0) == nil
}

// inode returns the identity of an open file; it is safe beside a close.
func inode(f *os.File) (dev, ino uint64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	st := info.Sys().(*syscall.Stat_t)
	return st.Dev, st.Ino, nil
}

// subdirs lists the child groups of dir.
func subdirs(dir int) (names []string, err error) {
	f, err := openDir(dir, ".")
	if err != nil {
		return nil, err
	}
	defer closeFile(f)
	entries, err := f.ReadDir(-1)
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// keyValues parses a flat keyed file ("key value" lines). Every line must parse.
func keyValues(text string) (map[string]int64, error) {
	kv := map[string]int64{}
	for line := range strings.Lines(text) {
		line, whole := strings.CutSuffix(line, "\n")
		key, value, ok := strings.Cut(line, " ")
		n, err := strconv.ParseInt(value, 10, 64)
		if _, twice := kv[key]; !whole || !ok || err != nil || twice {
			return nil, fmt.Errorf("parse line %q", line)
		}
		kv[key] = n
	}
	return kv, nil
}

// events is what cgroup.events says.
type events struct{ populated, frozen bool }

// parseEvents is strict: a missing key, a cut line or another value than 0 and 1 is an error, never "empty".
func parseEvents(text string) (events, error) {
	kv, err := keyValues(text)
	if err != nil {
		return events{}, err
	}
	populated, ok1 := kv["populated"]
	frozen, ok2 := kv["frozen"]
	if !ok1 || !ok2 || populated|1 != 1 || frozen|1 != 1 {
		return events{}, fmt.Errorf("parse cgroup.events %q", text)
	}
	return events{populated == 1, frozen == 1}, nil
}
