"""The engines that Trueup is compared with: how each is installed, deployed and asked for the same units."""
