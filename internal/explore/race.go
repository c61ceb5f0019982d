package explore

import "fmt"

// accesses are those to one plain variable that nothing later has come after.
type accesses struct {
	write clock // by thread: when it wrote last, by its own count
	read  clock
}

// Access says that the running thread reads or writes a plain variable, which is no step. Two accesses of which one writes,
// by two threads, without an operation that orders them are a Race. In the body and in Finally it is nothing.
func (m *M) Access(p any, name string, write bool) {
	t := m.now
	if t == nil || m.phase != running {
		return
	}
	verb := "reads "
	if write {
		verb = "writes "
	}
	m.note(verb+name, caller(m.trace))
	a := m.shadow[p]
	if a == nil {
		a = &accesses{}
		m.shadow[p] = a
	}
	for _, u := range m.threads {
		if u != t && (a.write[u.id] > t.sees[u.id] || write && a.read[u.id] > t.sees[u.id]) {
			m.fail(Race, fmt.Sprintf("%q %s%s, and nothing orders it after an access by %q", t.name, verb, name, u.name))
			panic(unwind{})
		}
	}
	if write {
		a.write[t.id] = t.sees[t.id]
	} else {
		a.read[t.id] = t.sees[t.id]
	}
}

// order keeps what t sees of the others' plain memory after an operation.
func (m *M) order(t *thread, o Order) {
	for _, object := range t.next.on {
		if object == 0 {
			continue
		}
		r := m.released[object]
		if o&Acquire != 0 && r != nil {
			t.sees.join(r)
		}
		if o&Release != 0 {
			c := t.sees
			m.released[object] = &c
		}
	}
	if o&Release != 0 {
		t.sees[t.id]++
	}
}
