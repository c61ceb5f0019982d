package cgroup

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	keepBytes     = 64 << 10 // head and tail in memory, each
	defaultLogCap = 64 << 20
	lineMax       = 4 << 10
	lineEvery     = 250 * time.Millisecond
	drainTime     = 5 * time.Second // after the proof, for a log whose disk hangs
	drainBytes    = 128 << 10       // two pipe sizes
)

// Output is what a tool printed, stdout and stderr together.
type Output struct {
	Head      []byte // first 64 KiB
	Tail      []byte // last 64 KiB of what is not in Head
	Bytes     int64  // printed in all
	Truncated bool   // the log (without one: Head and Tail) has less than Bytes: cap, or a disk error
}

// output empties the pipe of one tool. It never waits for the end of file: a daemon may hold the pipe for ever.
type output struct {
	read *os.File
	c    Command
	done chan struct{} // closed when copy has returned

	mu        sync.Mutex
	head      []byte // guarded by mu
	tail      []byte // guarded by mu: what follows head, cut at the front to keepBytes whenever it has twice that
	total     int64  // guarded by mu
	logged    int64  // guarded by mu
	truncated bool   // guarded by mu

	partial []byte    // copy alone: the end of the line that is not whole yet, one byte more than a line may have
	lastAt  time.Time // copy alone: of the last line given to c.Line
}

// newOutput makes the pipe. Only the reading end is non-blocking: the other end's flags are the tool's.
func newOutput(c Command) (*output, *os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	write := os.NewFile(uintptr(fds[1]), "stdout")
	if err := unix.SetNonblock(fds[0], true); err != nil {
		closeFile(os.NewFile(uintptr(fds[0]), "stdout"))
		closeFile(write)
		return nil, nil, err
	}
	if c.LogCap == 0 {
		c.LogCap = defaultLogCap
	}
	return &output{read: os.NewFile(uintptr(fds[0]), "stdout"), c: c, done: make(chan struct{})}, write, nil
}

// copy reads to the end of file, also when the log is full or its disk is: a full pipe looks like a hang. After finish it
// reads what the pipe still holds, without waiting, and no more than two pipe sizes: whoever fills it is no tool of ours.
func (o *output) copy() {
	defer close(o.done)
	defer closeFile(o.read)
	buf := make([]byte, 32<<10)
	read := o.read.Read
	for left := int64(math.MaxInt64); left > 0; {
		n, err := read(buf)
		o.take(buf[:n])
		left -= int64(n)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			read, left = o.readNow, drainBytes
		} else if err != nil {
			return
		}
		if o.c.Line != nil {
			o.lines(buf[:n], time.Now())
		}
	}
}

// readNow reads what the pipe holds; nothing is EAGAIN.
func (o *output) readNow(buf []byte) (n int, err error) {
	conn, err := o.read.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := conn.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buf) })
	if ctlErr == nil && n == 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), errors.Join(ctlErr, err)
}

// take keeps one block.
func (o *output) take(b []byte) {
	o.mu.Lock()
	room := o.c.LogCap - o.logged
	o.mu.Unlock()
	var logged int
	if o.c.Log != nil && room > 0 {
		logged, _ = o.c.Log.Write(b[:min(room, int64(len(b)))]) // a short count says it: Truncated
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.logged += int64(logged)
	o.truncated = o.truncated || logged < len(b)
	if o.c.Log != nil && int64(logged) < min(room, int64(len(b))) {
		o.c.LogCap = 0 // no holes in the log
	}
	head := min(keepBytes-len(o.head), len(b))
	o.head = append(o.head, b[:head]...)
	o.tail = append(o.tail, b[head:]...)
	if len(o.tail) > 2*keepBytes {
		o.tail = o.tail[:copy(o.tail, lastOf(o.tail))]
	}
	o.total += int64(len(b))
}

// lastOf returns the last keepBytes of b.
func lastOf(b []byte) []byte { return b[max(0, len(b)-keepBytes):] }

// lines gives the last whole line so far to the caller, if its time has come.
func (o *output) lines(b []byte, now time.Time) {
	o.partial = append(o.partial, b...)
	if end := bytes.LastIndexByte(o.partial, '\n'); end >= 0 {
		line := o.partial[bytes.LastIndexByte(o.partial[:end], '\n')+1 : end]
		if len(line) > 0 && len(line) <= lineMax && now.Sub(o.lastAt) >= lineEvery {
			o.lastAt = now
			o.c.Line(line)
		}
		o.partial = slices.Delete(o.partial, 0, end+1)
	}
	o.partial = slices.Delete(o.partial, 0, max(0, len(o.partial)-lineMax-1))
}

// finish reads what the pipe still holds after the proof, and waits for that.
func (o *output) finish() {
	_ = o.read.SetReadDeadline(time.Now()) // already closed at the end of file
	select {
	case <-o.done:
	case <-time.After(drainTime): // the copier ends when it can
	}
}

// Output returns what was printed so far; all of it after WaitEmpty.
func (p *Process) Output() Output {
	o := p.out
	o.mu.Lock()
	defer o.mu.Unlock()
	tail := bytes.Clone(lastOf(o.tail))
	truncated := o.truncated
	if o.c.Log == nil {
		truncated = o.total > int64(len(o.head)+len(tail))
	}
	return Output{Head: bytes.Clone(o.head), Tail: tail, Bytes: o.total, Truncated: truncated}
}
