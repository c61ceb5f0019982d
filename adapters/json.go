package adapters

import (
	"crypto/sha256"
	"encoding/json"
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
	j.text = j.text[:0]
	escaped, hex := false, 0
	for first := true; ; first = false {
		c, ok := j.next()
		switch {
		case !ok:
			return notWhole("ends inside a JSON string")
		case keep && len(j.text) > maxLine:
			return notWhole("a JSON key is longer than %d bytes", maxLine)
		case keep:
			j.text = append(j.text, c)
		}
		switch {
		case first:
		case hex > 0:
			if hex--; !isHex(c) {
				return notWhole("a JSON string holds a bad escape")
			}
		case escaped:
			escaped = false
			switch c {
			case 'u':
				hex = 4
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			default:
				return notWhole("a JSON string holds a bad escape")
			}
		case c == '\\':
			escaped = true
		case c == '"':
			return nil
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

func (j *jsonWalk) number() error {
	if c, _ := j.peek(); c == '-' {
		j.pos++
	}
	zero := false
	if c, ok := j.peek(); ok && c == '0' {
		zero = true
	}
	if n := j.digits(); n == 0 || zero && n > 1 {
		return notWhole("a JSON number is malformed")
	}
	if c, ok := j.peek(); ok && c == '.' {
		if j.pos++; j.digits() == 0 {
			return notWhole("a JSON number is malformed")
		}
	}
	if c, ok := j.peek(); ok && (c == 'e' || c == 'E') {
		j.pos++
		if c, ok := j.peek(); ok && (c == '+' || c == '-') {
			j.pos++
		}
		if j.digits() == 0 {
			return notWhole("a JSON number is malformed")
		}
	}
	return nil
}

func (j *jsonWalk) digits() (n int) {
	for {
		c, ok := j.peek()
		if !ok || c < '0' || c > '9' {
			return n
		}
		j.pos++
		n++
	}
}
