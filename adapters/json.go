package adapters

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"strings"
)

// jsonDepth is how deep a document may nest.
const jsonDepth = 512

// jsonKeys is how many keys the outermost object may have: they are remembered to find one that is there twice.
const jsonKeys = 1 << 16

// jsonWalk checks the grammar of RFC 8259 in one pass, without a tree. Only keys of the two outermost levels are kept, one at a time.
type jsonWalk struct {
	*source
	outer string                  // the current key of the outermost object
	inner func(outer, key string) // called for each key of an object that is a value of the outermost one; may be nil
	keys  map[[16]byte]struct{}   // digests of the outermost keys
	text  []byte                  // the last key read
}

func checkJSON(s *source, _ want) error {
	return (&jsonWalk{source: s, keys: map[[16]byte]struct{}{}}).document()
}

func checkYosysJSON(s *source, w want) error {
	modules, top := 0, false
	j := &jsonWalk{source: s, keys: map[[16]byte]struct{}{}, inner: func(outer, key string) {
		if outer == "modules" {
			modules++
			top = top || key == w.mustContain
		}
	}}
	if err := j.document(); err != nil {
		return err
	}
	switch {
	case modules == 0:
		return notWhole("the netlist holds no module")
	case w.mustContain != "" && !top:
		return notWhole("the netlist holds no module %q", w.mustContain)
	}
	return nil
}

func (j *jsonWalk) document() error {
	c, ok := j.space()
	if !ok || c != '{' && c != '[' {
		return notWhole("not a JSON object or array")
	}
	if err := j.value(0); err != nil {
		return err
	}
	if c, more := j.space(); more {
		return notWhole("byte %#02x after the JSON value", c)
	}
	return nil
}

// space skips white space and returns the byte after it, unread.
func (j *jsonWalk) space() (byte, bool) {
	for {
		c, ok := j.peek()
		if !ok || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c, ok
		}
		j.pos++
	}
}

func (j *jsonWalk) value(depth int) error {
	c, ok := j.space()
	switch {
	case !ok:
		return notWhole("ends inside a JSON value")
	case depth > jsonDepth:
		return notWhole("JSON nests deeper than %d", jsonDepth)
	case c == '{':
		return j.members(depth, '}')
	case c == '[':
		return j.members(depth, ']')
	case c == '"':
		return j.str(false)
	case c == '-' || c >= '0' && c <= '9':
		return j.number()
	}
	for _, word := range []string{"true", "false", "null"} {
		if c == word[0] {
			return j.literal(word)
		}
	}
	return notWhole("byte %#02x begins no JSON value", c)
}

// members reads an object or an array, whose first byte is unread.
func (j *jsonWalk) members(depth int, end byte) error {
	j.pos++
	for n := 0; ; n++ {
		c, ok := j.space()
		if ok && c == end && n == 0 {
			if j.pos++; depth == 0 {
				return notWhole("the JSON value is empty")
			}
			return nil
		}
		if end == '}' {
			if err := j.member(depth); err != nil {
				return err
			}
		}
		if err := j.value(depth + 1); err != nil {
			return err
		}
		switch c, ok := j.space(); {
		case !ok:
			return notWhole("ends inside a JSON value")
		case c == end:
			j.pos++
			return nil
		case c != ',':
			return notWhole("byte %#02x between two JSON values", c)
		}
		j.pos++
	}
}

// member reads a key and its colon.
func (j *jsonWalk) member(depth int) error {
	if c, ok := j.space(); !ok || c != '"' {
		return notWhole("a JSON key is missing")
	}
	if err := j.str(depth < 2); err != nil {
		return err
	}
	if depth < 2 {
		if err := j.remember(depth); err != nil {
			return err
		}
	}
	if c, ok := j.space(); !ok || c != ':' {
		return notWhole("a JSON key has no value")
	}
	j.pos++
	return nil
}

func (j *jsonWalk) remember(depth int) error {
	var key string
	if err := json.Unmarshal(j.text, &key); err != nil {
		return notWhole("a JSON key cannot be read")
	}
	if depth == 1 {
		if j.inner != nil {
			j.inner(j.outer, key)
		}
		return nil
	}
	sum := sha256.Sum256([]byte(key))
	digest := [16]byte(sum[:16])
	if _, twice := j.keys[digest]; twice || len(j.keys) >= jsonKeys {
		return notWhole("JSON key %.64q is there twice, or is one too many", key)
	}
	j.keys[digest] = struct{}{}
	j.outer = key
	return nil
}

// str reads a string; with keep its raw text, at most maxLine bytes, is left in j.text.
func (j *jsonWalk) str(keep bool) error {
	j.pos++ // the quote, which the caller saw
	j.text = append(j.text[:0], '"')
	for hex, escaped := 0, false; ; {
		for !keep && !escaped && hex == 0 && j.pos < j.n && j.buf[j.pos] >= 0x20 && j.buf[j.pos] != '"' && j.buf[j.pos] != '\\' {
			j.pos++ // most bytes of most files
		}
		c, ok := j.next()
		if !ok {
			return notWhole("ends inside a JSON string")
		}
		if keep {
			if j.text = append(j.text, c); len(j.text) > maxLine {
				return notWhole("a JSON key is longer than %d bytes", maxLine)
			}
		}
		switch {
		case hex > 0:
			if hex--; !isHex(c) {
				return notWhole("a JSON string holds a bad escape")
			}
		case escaped:
			if escaped = false; c == 'u' {
				hex = 4
			} else if bytes.IndexByte([]byte(`"\/bfnrt`), c) < 0 {
				return notWhole("a JSON string holds a bad escape")
			}
		case c == '"':
			return nil
		case c == '\\':
			escaped = true
		case c < 0x20:
			return notWhole("a JSON string holds control byte %#02x", c)
		}
	}
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func (j *jsonWalk) literal(word string) error {
	for i := range len(word) {
		if c, ok := j.next(); !ok || c != word[i] {
			return notWhole("a JSON literal is not %s", word)
		}
	}
	return nil
}

// number reads -?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?.
func (j *jsonWalk) number() error {
	j.take("-")
	zero := j.take("0")
	whole := j.digits()
	ok := zero != (whole > 0)
	if ok && j.take(".") {
		ok = j.digits() > 0
	}
	if ok && j.take("eE") {
		j.take("+-")
		ok = j.digits() > 0
	}
	if !ok {
		return notWhole("a JSON number is malformed")
	}
	return nil
}

// take reads one byte if it is in set.
func (j *jsonWalk) take(set string) bool {
	c, ok := j.peek()
	if ok = ok && strings.IndexByte(set, c) >= 0; ok {
		j.pos++
	}
	return ok
}

func (j *jsonWalk) digits() (n int) {
	for j.take("0123456789") {
		n++
	}
	return n
}
