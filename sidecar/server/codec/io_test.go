package codec

import "strings"

// call returns a message of size bytes and its newline.
func call(size int) string {
	const head, tail = `{"id":7,"pad":"`, `"}`
	return head + strings.Repeat("x", size-len(head)-len(tail)) + tail + "\n"
}

// ioFunc is a reader or writer.
type ioFunc func([]byte) (int, error)

func (f ioFunc) Read(p []byte) (int, error)  { return f(p) }
func (f ioFunc) Write(p []byte) (int, error) { return f(p) }
