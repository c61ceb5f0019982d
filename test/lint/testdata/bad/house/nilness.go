package house

func nilness(p *int) int {
	if p == nil {
		return *p
	}
	return 0
}
