package explore

import (
	"bytes"
	"fmt"
	"iter"
	"math/bits"
	"path"
	"reflect"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
)

// maxThreads is far above what can be searched: about three threads of eight conflicting steps.
const maxThreads = 8

// clock counts, for each thread, the steps that are known to have come before.
type clock [maxThreads]int32

func (c *clock) join(d *clock) {
	for i := range c {
		c[i] = max(c[i], d[i])
	}
}

type phase int

const (
	direct  phase = iota // in the body and in Finally operations are performed at once
	running              // operations are steps
	ended                // operations are nothing: the threads that have not ended are unwound
)

// M is one execution of a model. The body gets a new one each time.
type M struct {
	threads []*thread
	finals  []func()
	phase   phase
	over    bool // the body has returned
	now     *thread
	ids     map[any]int // objects, numbered by first use: the same along the same schedule
	values  map[any]int // pointers in results, likewise
	failure *Failure

	shadow   map[any]*accesses
	released map[int]*clock // by object: what whoever acquires it sees

	keep, trace bool // log the steps; with their places
	log         []step
	left        uint64 // threads that could go on when it ended, as bits

	count   bool // goroutines
	guard   bool // each operation
	owner   uint64
	created uint64      // goroutines before this execution
	stray   atomic.Bool // one performed an operation
	extra   bool        // more goroutines were made than there are threads; the runtime makes some, too
}

// thread is a coroutine of an execution.
type thread struct {
	id     int
	name   string
	body   func()
	resume func() (struct{}, bool)
	stop   func()
	yield  func(struct{}) bool
	goid   uint64
	done   bool

	op    *Op // announced, and performed when the thread is resumed
	next  event
	pick  int // the case of op that was decided
	where string
	last  clock // of its last step
	sees  clock // as The Go Memory Model has it, for Access
}

// step is one line of a log.
type step struct {
	thread, pick        int
	what, result, where string
}

// unwind is the panic that takes a thread down when its schedule has ended.
type unwind struct{}

// begin runs the body on m, and each thread up to its first operation.
func begin(body func(*M), m *M) *M {
	m.ids, m.values, m.shadow, m.released = map[any]int{}, map[any]int{}, map[any]*accesses{}, map[int]*clock{}
	if m.count = m.count && fault != "stray"; m.count {
		m.created = created()
	}
	if m.guard = m.guard && fault != "stray"; m.guard {
		m.owner = goid()
	}
	if outer := current.Swap(m); outer != nil && outer.phase != ended {
		panic("explore: an exploration within another")
	}
	m.caught("the body", func() { body(m) })
	m.over = true
	if n := len(m.threads); m.failure == nil && (n < 2 || n > maxThreads) {
		m.fail(Limit, fmt.Sprintf("%d threads, want 2 to %d", n, maxThreads))
	}
	m.phase = running
	for _, t := range m.threads {
		t.resume, t.stop = iter.Pull(func(yield func(struct{}) bool) {
			t.yield = yield
			if m.guard {
				t.goid = goid()
			}
			m.caught(strconv.Quote(t.name), t.body)
			t.done = true
		})
		t.sees[t.id] = 1
		if m.failure == nil {
			m.goOn(t)
		}
	}
	return m
}

// goOn runs t up to its next operation, or to its end.
func (m *M) goOn(t *thread) {
	m.now = t
	_, _ = t.resume() // values are not what the coroutine is for
	m.now = nil
}

// step performs the operation that t has announced.
func (m *M) step(t *thread, pick int) {
	t.pick = pick
	if m.keep {
		m.log = append(m.log, step{thread: t.id, pick: pick, what: t.op.Name + numbers(t.next.on), where: t.where})
	}
	m.goOn(t)
}

// end runs what Finally registered if all threads have ended, takes down those that have not, and looks for strays.
func (m *M) end() {
	m.phase = direct
	done := true
	for _, t := range m.threads {
		done = done && t.done
	}
	for _, f := range m.finals {
		if done && m.failure == nil {
			m.caught("Finally", f)
		}
	}
	m.phase = ended
	for _, t := range m.threads {
		t.stop()
	}
	m.extra = m.count && created()-m.created > uint64(len(m.threads))
	if m.stray.Load() {
		m.failure = &Failure{Kind: Stray, Reason: "an operation by a goroutine that is no thread of the model"}
	}
}

// caught runs f and turns its panic into a failure.
func (m *M) caught(who string, f func()) {
	defer func() {
		switch r := recover(); r.(type) {
		case nil, unwind:
		default:
			if m.phase != ended { // a thread that is unwound may trip over what it was told
				m.fail(Panic, fmt.Sprintf("%s: %v", who, r))
				m.note("panic", caller(m.trace))
			}
		}
	}()
	f()
}

func (m *M) fail(kind Kind, reason string) {
	if m.failure == nil {
		m.failure = &Failure{Kind: kind, Reason: reason}
	}
}

// note adds a line to the trace that is no step.
func (m *M) note(what, where string) {
	if m.trace && m.now != nil {
		m.log = append(m.log, step{thread: m.now.id, pick: -1, what: what, where: where})
	}
}

func (m *M) do(op *Op) {
	if m.guard && m.phase != ended && goid() != m.expected() {
		m.stray.Store(true)
		runtime.Goexit()
	}
	if m.phase == ended {
		return
	}
	if op.Cases < 0 || op.Cases > 64 || op.Name == "Choose" && op.Cases == 0 {
		panic(fmt.Sprintf("explore: %s of %d cases, want 1 to 64", op.Name, op.Cases))
	}
	if m.phase == direct {
		cases := op.ready()
		if cases == 0 || op.Name == "Choose" {
			panic("explore: " + op.Name + " outside the threads of a model would wait, or branch")
		}
		_, _ = op.Do(bits.TrailingZeros64(cases)) // no step: nobody asks for its result
		return
	}
	if fault == "invisible" && op.Blocked != nil && op.Ready == nil {
		_, _ = op.Do(0) // as above
		return
	}
	t := m.now
	t.op, t.next = op, event{
		thread: t.id, on: [2]int{m.number(m.ids, op.On[0]), m.number(m.ids, op.On[1])},
		read: op.Read, waits: op.Ready != nil && op.On[1] == nil,
	}
	t.where = caller(m.trace)
	if !t.yield(struct{}{}) {
		panic(unwind{})
	}
	result, order := op.Do(t.pick)
	m.order(t, order)
	if m.keep {
		m.log[len(m.log)-1].result = m.show(result)
	}
}

// expected returns the goroutine that may perform operations now.
func (m *M) expected() uint64 {
	if m.now != nil {
		return m.now.goid
	}
	return m.owner
}

// enabled returns the threads that can go on, as bits.
func (m *M) enabled() (threads uint64) {
	defer func() { m.left = threads }()
	for _, t := range m.threads {
		if !t.done && (t.op.ready() != 0 || fault == "intention" && m.meant(t)) {
			threads |= 1 << t.id
		}
	}
	return threads
}

// meant reports whether another thread means to let t go on.
func (m *M) meant(t *thread) bool {
	for _, u := range m.threads {
		if !u.done && u.op.Blocked != nil && u.op.Ready == nil && u.next.on[0] == t.next.on[0] {
			return true
		}
	}
	return false
}

// stuck says who waits for what when nobody can go on; empty if all have ended.
func (m *M) stuck() string {
	var who []string
	for _, t := range m.threads {
		if !t.done {
			who = append(who, fmt.Sprintf("%q waits in %s", t.name, t.op.Name))
			if m.trace {
				m.log = append(m.log, step{thread: t.id, pick: -1, what: "waits in " + t.op.Name + numbers(t.next.on), where: t.where})
			}
		}
	}
	return strings.Join(who, ", ")
}

func (m *M) number(in map[any]int, object any) int {
	if object == nil {
		return 0
	}
	n, known := in[object]
	if !known {
		n = len(in) + 1
		in[object] = n
	}
	return n
}

func (m *M) show(result any) string {
	switch v := reflect.ValueOf(result); {
	case !v.IsValid():
		return ""
	case v.Kind() != reflect.Pointer:
		return fmt.Sprint(result)
	case v.IsNil():
		return "nil"
	}
	return fmt.Sprintf("&%d", m.number(m.values, result))
}

// lines renders the log.
func (m *M) lines() (lines []string) {
	n := 0
	for _, s := range m.log {
		at, result := "", ""
		if s.pick >= 0 {
			n++
			at = strconv.Itoa(n)
		}
		if s.result != "" {
			result = " = " + s.result
		}
		line := fmt.Sprintf("%3s  %d %-12s %-34s %s", at, s.thread, m.threads[s.thread].name, s.what+result, s.where)
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return lines
}

func numbers(on [2]int) (s string) {
	for _, n := range on {
		if n > 0 {
			s += fmt.Sprintf(" #%d", n)
		}
	}
	return s
}

// caller returns file and line of the model, or of the code under it, that called.
func caller(wanted bool) string {
	if !wanted {
		return ""
	}
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		name := path.Base(f.Function)
		ours := strings.HasPrefix(name, "explore.") || strings.HasPrefix(name, "msync.") || strings.HasPrefix(name, "runtime.")
		if f.Line > 0 && (!ours || strings.HasSuffix(f.File, "_test.go")) {
			return fmt.Sprintf("%s:%d", path.Base(f.File), f.Line)
		}
		if !more {
			return ""
		}
	}
}

// goid returns the number of the goroutine.
func goid() uint64 {
	buf := make([]byte, 32)
	id, _, _ := bytes.Cut(bytes.TrimPrefix(buf[:runtime.Stack(buf, false)], []byte("goroutine ")), []byte(" "))
	n, err := strconv.ParseUint(string(id), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("explore: the runtime names a goroutine %q", id))
	}
	return n
}

// created returns how many goroutines the process has ever made.
func created() uint64 {
	s := []metrics.Sample{{Name: "/sched/goroutines-created:goroutines"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
