package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Head is the end of a trail: what to keep elsewhere in order to notice later that the trail was rewritten.
// The zero value is an empty trail.
type Head struct {
	Seq  int64
	Hash []byte // 32 bytes; nil for an empty trail
}

// String returns "<seq> <hash in hex>".
func (h Head) String() string { return fmt.Sprintf("%d %s", h.Seq, hex.EncodeToString(h.Hash)) }

// Next returns the head after body: SHA-256 over the previous hash and the stored bytes.
func (h Head) Next(body []byte) Head {
	s := sha256.New()
	s.Write(h.Hash)
	s.Write(body)
	return Head{h.Seq + 1, s.Sum(nil)}
}

// Columns are what a stored event is found by. They say what its body says. At is in nanoseconds since the epoch.
type Columns struct {
	Seq                                 int64
	Job, Session, Kind, Tool, Principal string
	At                                  int64
}

// Columns returns the columns of e.
func (e Entry) Columns() Columns {
	return Columns{e.Seq, e.Job, e.Session, string(e.Kind), e.Tool, e.Principal, e.At.UnixNano()}
}

// Row is one stored event.
type Row struct {
	Columns
	Body, Hash []byte
}

// Fault says what is wrong with the trail, and where first. It wraps [ErrTrail].
type Fault struct {
	Seq    int64  // of the event; 0: of no single event
	Job    string // may be empty
	Reason string
}

// Error names the event and the reason.
func (f *Fault) Error() string {
	return fmt.Sprintf("event %d of job %q: %s: %v", f.Seq, f.Job, f.Reason, ErrTrail)
}

// Unwrap returns [ErrTrail].
func (f *Fault) Unwrap() error { return ErrTrail }
