package txn

import "fmt"

// StagedArg returns the path, relative to work, that the tool is told for this output: ../s0/out.json.
func (o Output) StagedArg() string { return fmt.Sprintf("../s%d/%s", o.Index, slotName(o)) }
