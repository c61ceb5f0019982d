// Package strictjson finds what encoding/json lets pass in a document that must mean the same to every reader: two members of one
// name, of which encoding/json takes the last, deep nesting, text that is not UTF-8, and bytes behind the value.
//
// # Guarantees
//
// Check accepts no document that encoding/json refuses, and none in which an object names a member twice (TestCheck, FuzzCheck).
//
// # Not guaranteed
//
// That members are known: json.Decoder.DisallowUnknownFields sees to it. Size is the caller's to bound.
//
// # Concurrency
//
// A pure function.
//
// # Failure
//
// The error says what is wrong with the document. Callers wrap it in a sentinel of their own.
//
// # Testing
//
// Used as it is.
//
// # Sources
//
// RFC 8259 section 4 (names should be unique); encoding/json, fold.go (how names are compared with those of fields).
package strictjson
