package house

func mapliteral() map[color]int { return map[color]int{blue: 1} }
