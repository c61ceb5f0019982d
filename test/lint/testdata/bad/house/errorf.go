package house

import "fmt"

func errorf(err error) error { return fmt.Errorf("read: %v", err) }
