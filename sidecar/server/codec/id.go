package codec

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"unicode/utf8"
)

const maxIDBytes = 128

// idFinder finds the id of a message that is not kept: it follows strings and nesting, and keeps one name or value of
// the outermost object at a time. The zero value is ready.
type idFinder struct {
	depth           int // of open objects and arrays
	quoted, escaped bool
	began, broken   bool   // the object began; it is not the only value
	token           []byte // text of a name or value of the outermost object, of what is nested the brackets alone
	isID            bool   // the name before token is id
	id              []byte
	ids             int // members named id
}

// scan goes on with the next bytes of the message.
func (f *idFinder) scan(text []byte) {
	for _, c := range text {
		switch {
		case f.quoted:
			f.keep(c)
			f.quoted = f.escaped || c != '"'
			f.escaped = !f.escaped && c == '\\'
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
			// one blank is kept, so that 1 2 does not become 12
			if n := len(f.token); n > 0 && f.token[n-1] != ' ' {
				f.keep(' ')
			}
		case f.depth == 0:
			f.broken = f.broken || f.began || c != '{'
			f.began, f.depth = true, 1
		case c == '{' || c == '[':
			f.keep(c)
			f.depth++
		case c == '}' || c == ']':
			if f.depth--; f.depth == 0 {
				f.member()
			}
			f.keep(c)
		case f.depth == 1 && c == ',':
			f.member()
		case f.depth == 1 && c == ':':
			f.isID = named(f.token, "id")
			f.token = f.token[:0]
		default:
			f.keep(c)
			f.quoted = c == '"'
		}
	}
}

func (f *idFinder) keep(c byte) {
	if f.depth == 1 && len(f.token) <= maxIDBytes {
		f.token = append(f.token, c)
	}
}

// named reports whether a quoted name means want.
func named(quoted []byte, want string) (is bool) {
	var name string
	return json.Unmarshal(quoted, &name) == nil && name == want
}

// member ends a member of the outermost object.
func (f *idFinder) member() {
	if f.isID {
		f.ids++
		f.id = bytes.Clone(bytes.TrimSpace(f.token))
	}
	f.isID, f.token = false, f.token[:0]
}

// found returns the id of the one object that was scanned, or nil: an answer must not go to another request.
func (f *idFinder) found() json.RawMessage {
	if f.depth != 0 || f.broken || f.ids != 1 || len(f.id) > maxIDBytes || !json.Valid(f.id) || !utf8.Valid(f.id) ||
		!bytes.ContainsAny(f.id[:1], `"-0123456789`) {
		return nil
	}
	return f.id
}

// exact reports whether the id, if it is a number, is an integer that a float64 holds and none beside it.
func (f *idFinder) exact() bool {
	if len(f.id) == 0 || !bytes.ContainsAny(f.id[:1], "-0123456789") {
		return true
	}
	n, err := strconv.ParseFloat(string(f.id), 64)
	return err == nil && n == math.Trunc(n) && math.Abs(n) < 1<<53
}
